"""``load``: from a directory, the Hub's cache or a transformers model, with every option applied or refused."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import filter_repo_objects
from transformers import AutoModelForCausalLM

from paceline.api.loading import DTYPES, find_device, find_dtype, load
from paceline.models import hub, loading, memory
from paceline.models.loading import ModelError
from tests import tiny
from tests.api.checkpoints import CONTEXT, EOS, VOCAB, config_of, make_tokenizer, pair, without_tokenizer

NAME, COMMIT = "paceline-tests/tiny", "0123456789abcdef0123456789abcdef01234567"
TEXT = torch.randint(VOCAB, (1, 20), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def transformers_model():
    return AutoModelForCausalLM.from_pretrained(pair().target).eval()


@torch.no_grad()
def same(loaded, model):
    found, wanted = loaded.lm.causal(TEXT).logits, model(TEXT).logits
    return torch.allclose(found.double(), wanted.double(), rtol=0, atol=1e-4)


# Directories


@pytest.mark.parametrize("form", [str, Path])
def test_directory_gives_model_tokenizer_and_config(form, transformers_model):
    loaded = load(form(pair().target), device="cpu")
    assert same(loaded, transformers_model)
    assert loaded.name == str(pair().target) and loaded.eos == (EOS,) and loaded.dtype == torch.float64
    assert loaded.config == json.loads((pair().target / "config.json").read_text())
    assert loaded.tokenizer.encode("def") == make_tokenizer().encode("def").ids


@pytest.mark.parametrize("folder", [".", "models/tiny"])
def test_directory_takes_precedence_over_hub_id(folder, tmp_path, monkeypatch):
    shutil.copytree(pair().target, tmp_path / folder, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "fetch", None)
    assert load(folder).name == folder


@pytest.mark.parametrize("given", [*DTYPES, *DTYPES.values()], ids=str)
def test_dtype_is_given_by_name_or_object(given):
    wanted = DTYPES.get(given, given)
    loaded = load(pair().target, dtype=given)
    assert loaded.dtype == wanted == loaded.lm.dtype
    assert {parameter.dtype for parameter in loaded.lm.parameters()} == {wanted}


@pytest.mark.parametrize("given", [None, "auto"])
def test_dtype_of_the_files_is_the_default(given, tmp_path):
    assert find_dtype(given) is None
    assert load(pair().target, dtype=given).dtype == torch.float64
    tiny.llama(dtype=torch.bfloat16).save_pretrained(tmp_path)
    assert load(tmp_path, dtype=given).dtype == torch.bfloat16


def test_default_device_is_cuda_if_available(monkeypatch):
    seen = []
    monkeypatch.setattr(loading, "load", lambda path, device, **options: seen.append(device) or tiny.draft())
    for available in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        load(pair().target)
        load(pair().target, device="cpu")
    assert [device.type for device in seen] == ["cpu", "cpu", "cuda", "cpu"]


def test_devices_are_found_by_name_and_number(monkeypatch):
    assert find_device("cpu") == find_device(torch.device("cpu")) == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_device("cuda") == torch.device("cuda") and find_device("cuda:1").index == 1
    with pytest.raises(
        ValueError, match="device 'cuda:2' is not available: this machine has 2 CUDA devices; give 'cpu'"
    ):
        find_device("cuda:2")


def test_threads_are_set_after_loading(tmp_path):
    before = torch.get_num_threads()
    try:
        load(pair().target, threads=2)
        assert torch.get_num_threads() == 2
        with pytest.raises(ModelError):
            load(tmp_path / "nowhere", threads=1)
        load(pair().target)
        assert torch.get_num_threads() == 2, "neither a failure nor silence changes the number"
    finally:
        torch.set_num_threads(before)


REFUSED = [
    (dict(dtype="half"), "unknown dtype 'half'; known: auto, float64, float32, bfloat16, float16"),
    (dict(dtype=torch.int8), "unknown dtype 'torch.int8'; known: auto, float64"),
    (dict(device="gpu"), "unknown device 'gpu'; known: cpu, cuda"),
    (dict(device="mps"), "device 'mps' is not supported; known: cpu, cuda"),
    (dict(device=torch.device("meta")), "device 'meta' is not supported; known: cpu, cuda"),
    (dict(device="cuda:99"), "device 'cuda:99' is not available: this machine has . CUDA devices"),
    (dict(backend="vllm"), "backend 'vllm': known are auto, native"),
    (dict(threads=0), "threads=0: give at least 1"),
    (dict(revision="main"), "revision='main': .*target is a local directory; only models of the Hub have"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_unsupported_option_is_refused_before_any_work(options, message, monkeypatch):
    monkeypatch.setattr(loading, "load", None)
    monkeypatch.setattr("paceline.api.loading.load_tokenizer", None)
    with pytest.raises(ValueError, match=message):
        load(pair().target, **options)


@pytest.mark.parametrize("model", [None, 5, torch.nn.Linear(2, 2)], ids=lambda model: type(model).__name__)
def test_other_types_are_refused_as_models(model):
    with pytest.raises(
        ModelError, match=f"a model of type {type(model).__name__}: give a directory, a Hub id or a loaded"
    ):
        load(model)


def test_weights_larger_than_memory_are_refused(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 100_000)
    with pytest.raises(
        ModelError, match=r"weights of 0\.000\d+ GiB exceed the 9.31e-05 GiB free on cpu: give dtype='bf"
    ):
        load(pair().target, device="cpu")


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("with_tokenizer", [False, True])
def test_code_of_a_checkpoint_never_runs_for_the_model(trusted, with_tokenizer, tmp_path, transformers_model):
    folder, trace = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(pair().target, folder)
    if not with_tokenizer:
        (folder / "tokenizer.json").unlink()
    (folder / "own_code.py").write_text(f"open({str(trace)!r}, 'w')\nraise SystemExit('it ran')\n")
    config_of(folder, auto_map={name: f"own_code.{name}" for name in ("AutoConfig", "AutoModelForCausalLM")})
    loaded = load(folder, trust_remote_code=trusted, device="cpu")
    assert same(loaded, transformers_model) and (loaded.tokenizer is not None) == with_tokenizer
    assert not trace.exists()


def test_trust_is_handed_to_the_tokenizer(monkeypatch, transformers_model):
    seen = []
    monkeypatch.setattr(
        "paceline.api.loading.load_tokenizer", lambda path, *, trust_remote_code: seen.append(trust_remote_code)
    )
    for model in (pair().target, transformers_model):
        for trusted in (False, True):
            load(model, trust_remote_code=trusted)
    assert seen == [False, True] * 2


# The Hub


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache as the Hub's client leaves it, and no way out."""
    folder = tmp_path / "hub" / f"models--{NAME.replace('/', '--')}"
    shutil.copytree(pair().target, folder / "snapshots" / COMMIT)
    (folder / "refs").mkdir()
    for reference in ("main", "v1"):
        (folder / "refs" / reference).write_text(COMMIT)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


@pytest.mark.parametrize("revision", [None, "main", "v1", COMMIT])
def test_hub_id_is_found_in_the_cache(revision, cache, transformers_model):
    loaded = load(NAME, revision=revision, device="cpu")
    assert same(loaded, transformers_model)
    assert loaded.name == NAME and loaded.eos == (EOS,) and loaded.tokenizer is not None


def test_environment_sets_the_hub_cache_and_offline_mode(cache):
    code = f"from paceline.api import load; print(load({NAME!r}).name); load('paceline-tests/none')"
    environment = {**os.environ, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout == f"{NAME}\n"
    assert "paceline-tests/none; and the Hub's cache has no complete copy of it, while HF_HUB_OFFLINE" in done.stderr


MISSES = {
    "model": (
        ("paceline-tests/none", None),
        "no such model directory: paceline-tests/none; and the Hub's cache has no",
    ),
    "revision": (
        (NAME, "v2"),
        f"{NAME} at revision 'v2'; and the Hub's cache has no complete copy of it, while HF_HUB_O",
    ),
    "bad id": (
        ("what is/this?", None),
        r"no such model directory: what is/this\?; and no Hub id either: give 'organis",
    ),
    "no directory": (("modle", None), "no such model directory: modle; and the Hub's cache has no complete copy"),
}


@pytest.mark.parametrize("case", MISSES)
def test_uncached_hub_id_is_refused_with_the_way_out(case, cache):
    (name, revision), message = MISSES[case]
    with pytest.raises(ModelError, match=message):
        load(name, revision=revision)


@pytest.mark.parametrize(
    "name", ["/no/where", "./nowhere", "../nowhere/at", "~/nowhere", "no/where/at", Path("no/where")]
)
def test_paths_are_never_looked_up_on_the_hub(name, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    with pytest.raises(ModelError, match=r"no such model directory: .*; give a directory that holds config.json"):
        load(name)


def response(status):
    """As much of an answer of the Hub as the client's errors look at."""
    return SimpleNamespace(status_code=status, headers={}, request=None)


FAILURES = [
    (lambda: GatedRepoError("?", response=response(403)), "is gated on the Hub: accept its terms there and log"),
    (
        lambda: RepositoryNotFoundError("?", response=response(404)),
        "no such model on the Hub, or no access to it: check the id, log in with `hf auth login`",
    ),
    (
        lambda: RevisionNotFoundError("?", response=response(404)),
        "at revision 'v3' does not exist on the Hub: check the branch, tag or commit",
    ),
    (lambda: OSError("no route"), r"could not be fetched from the Hub \(no route\); try again, or give a"),
    (lambda: RuntimeError("?"), r"could not be fetched from the Hub \(\?\); try again, or give a local dir"),
]


@pytest.mark.parametrize(("make", "message"), FAILURES)
def test_hub_errors_name_the_id_and_the_way_out(make, message, monkeypatch):

    def refuse(repository, **options):
        raise make()

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ModelError, match=rf"{NAME}.*{message}"):
        load(NAME, revision="v3")


@pytest.mark.parametrize("trusted", [False, True])
def test_code_is_only_fetched_if_trusted(trusted, monkeypatch):
    asked = {}
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **options: asked.update(options) or str(pair().target)
    )
    load(NAME, revision="v1", trust_remote_code=trusted)
    assert asked.pop("revision") == "v1"
    wanted = [
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "merges.txt",
        "chat_template.jinja",
        "additional_chat_templates/tools.jinja",
    ]
    code = ["modeling_tiny.py", "tokenization_tiny.py", "tokenizer.py", "layers/norm.py"]
    others = [
        "README.md",
        "modeling_tiny.pyc",
        "pytorch_model.bin",
        "consolidated.safetensors",
        "original/model.safetensors",
        "onnx/config.json",
        "model.gguf",
    ]
    patterns = {name: asked[name] for name in ("allow_patterns", "ignore_patterns")}
    assert list(filter_repo_objects(wanted + code + others, **patterns)) == wanted + (code if trusted else [])


# Loaded transformers models


def test_loaded_model_brings_tokenizer_and_config(transformers_model):
    loaded = load(transformers_model)
    assert same(loaded, transformers_model)
    assert loaded.name == "LlamaForCausalLM" and loaded.dtype == torch.float64 and loaded.eos == (EOS,)
    assert loaded.config == transformers_model.config.to_dict()
    assert loaded.tokenizer.encode("def") == make_tokenizer().encode("def").ids
    assert loaded.lm.embed.weight.data_ptr() == transformers_model.model.embed_tokens.weight.data_ptr()


def test_model_without_a_directory_has_no_tokenizer(tmp_path, monkeypatch):
    shutil.copytree(pair().target, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)  # an empty name would be this directory
    assert load(tiny.gpt2()).tokenizer is None
    model = AutoModelForCausalLM.from_pretrained(without_tokenizer(tmp_path / "bare"))
    assert load(model).tokenizer is None


@pytest.mark.parametrize(
    "options",
    [dict(dtype="float64"), dict(dtype=torch.float64, device="cpu"), dict(dtype="auto", device=torch.device("cpu"))],
    ids=str,
)
def test_options_that_match_a_loaded_model_are_accepted(options, transformers_model):
    assert same(load(transformers_model, **options), transformers_model)


CONTRADICTIONS = [
    (dict(dtype="float32"), "float32: LlamaForCausalLM is already loaded as float64 on cpu; convert it yourself"),
    (dict(device="cuda:0"), r"cuda:0: LlamaForCausalLM is already loaded as .* with model.to\(...\), or load"),
    (dict(dtype="float64", device="cuda"), "float64, cuda: LlamaForCausalLM is already loaded as float64 on cpu"),
    (dict(revision="v1"), "revision='v1': LlamaForCausalLM is loaded already; load the revision by its id"),
]


@pytest.mark.parametrize(("options", "message"), CONTRADICTIONS)
def test_loaded_model_is_never_converted(options, message, transformers_model, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr("paceline.models.from_transformers.from_transformers", None)
    with pytest.raises(ModelError, match=message):
        load(transformers_model, **options)


def test_loaded_model_is_not_moved_to_cuda(transformers_model, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert load(transformers_model).lm.device == torch.device("cpu")


def test_context_length_is_read_from_the_model(transformers_model):
    assert load(transformers_model).lm.max_positions == load(pair().target).lm.max_positions == CONTEXT
