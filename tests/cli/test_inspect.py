import json
import re
import shlex
import sys

import pytest
import torch

from paceline.api import Engine, load
from paceline.api.build import build_drafter
from paceline.cli import run
from paceline.cli.app import read_options
from paceline.cli.commands.generate import Generate
from paceline.drafters import DRAFTERS
from paceline.drafters.none import NoDrafter
from paceline.engine.memory import weight_bytes
from paceline.models.adapter.lm import TransformersLM
from paceline.models.native.quantization import SCHEMES
from paceline.verifiers import VERIFIERS
from tests.api.checkpoints import CONTEXT, VOCAB, nothing_in_common, other_vocabulary, pair, without_tokenizer
from tests.cli import snapshots
from tests.examples.installed import put_example
from tests.models.adapter_models import MODELS, REFUSED, SIZES, make


def inspect(capsys, *words):
    assert run(["inspect", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_facts_are_those_of_the_loaded_model(capsys):
    found = inspect(capsys, pair().target, "--batch-size", 3, "--context", 100)
    loaded = load(pair().target)
    model = found["model"]
    assert model["parameters"] == sum(p.numel() for p in loaded.lm.parameters())
    assert (model["architecture"], model["vocabulary"], model["context"]) == ("llama", VOCAB, CONTEXT)
    assert (model["layers"], model["heads"], model["kv_heads"], model["head_dim"]) == (3, 4, 2, 8)
    assert model["precision"] == ["float64"] and loaded.dtype == torch.float64
    assert model["size_on_disk"] == (pair().target / "model.safetensors").stat().st_size
    assert found["tokenizer"] == {"tokens": loaded.tokenizer.size, "chat_template": False, "end_of_text": [0]}
    assert found["memory"]["weights"] == weight_bytes([loaded.lm])


@pytest.mark.parametrize("quantization", SCHEMES)
def test_quantized_sizes_equal_those_in_memory(quantization, capsys):
    words = ["--quantization", quantization, "--draft", pair().draft, "--draft-quantization", "int8"]
    found = inspect(capsys, pair().target, *words)
    lms = [
        load(path, device="cpu", quantization=scheme).lm
        for path, scheme in ((pair().target, quantization), (pair().draft, "int8"))
    ]
    assert found["memory"]["weights"] == weight_bytes(lms)
    assert found["model"]["parameters"] == inspect(capsys, pair().target)["model"]["parameters"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--quantization", "int3"], "--quantization int3: known are int8, int4"),
        (["--draft-quantization", "int8"], "it needs a draft model, give --draft DIR"),
        (["--quantization", "int8", "--backend", "hf"], "what it takes is known of native models"),
    ],
)
def test_quantization_of_unknown_size_is_refused(words, message, capsys):
    assert run(["inspect", str(pair().target), *words]) != 0
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("draft", [False, True])
def test_memory_equals_the_engines(draft, capsys):
    words = ["--draft", pair().draft] if draft else []
    found = inspect(capsys, pair().target, "--batch-size", 3, "--context", 100, "--num-draft-tokens", 4, *words)
    target = load(pair().target)
    drafter = build_drafter(pair().draft, target=target) if draft else None
    engine = Engine(target, drafter=drafter, batch_size=3, max_length=100, num_draft_tokens=4)
    caches = [engine.decoder.cache.storage] + ([drafter.cache.storage] if draft else [])
    taken = sum(tensor.numel() * tensor.element_size() for cache in caches for tensor in (cache.keys, cache.values))
    assert 0.7 * taken < found["memory"]["cache"] < 1.5 * taken


def test_no_weights_are_read(capsys, monkeypatch):
    def refuse(*_):
        raise AssertionError("a weight was read")

    monkeypatch.setattr("paceline.models.loading._tensors", refuse)
    inspect(capsys, pair().target, "--draft", pair().draft)


def test_requested_precision_determines_the_sizes(capsys):
    half = inspect(capsys, pair().target, "--dtype", "float16")["memory"]
    whole = inspect(capsys, pair().target, "--dtype", "float32")["memory"]
    assert whole["weights"] == 2 * half["weights"] and whole["cache"] > half["cache"]


def test_draft_fits_or_the_reason_is_given(capsys, tmp_path):
    fitting = inspect(capsys, pair().target, "--draft", pair().draft)["draft"]
    assert fitting["fits"] and not fitting["reasons"] and fitting["note"] is None
    other = other_vocabulary(tmp_path / "shared")
    found = inspect(capsys, pair().target, "--draft", other)["draft"]
    assert found["fits"] and found["drafts_by"] == "tli" and found["common_tokens"] == 257
    assert 0.8 < found["share_of_targets_tokens"] < 0.9 and 0.75 < found["share_of_a_text"] < 1
    other = nothing_in_common(tmp_path / "other")
    found = inspect(capsys, pair().target, "--draft", other)["draft"]
    assert not found["fits"] and "different vocabularies" in found["reasons"][0]
    assert found["note"] == "drafts nothing beyond its context of 128 tokens"


def test_everything_installed_that_can_draft_is_named_with_a_line(capsys, tmp_path, monkeypatch):
    put_example(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    DRAFTERS.refresh()
    try:
        found = inspect(capsys, pair().target)
    finally:
        monkeypatch.undo()
        sys.modules.pop("paceline_bigram", None)
        DRAFTERS.refresh()
    assert found["drafters"].keys() >= {"bigram", "model", "ngram", "none"}
    assert found["drafters"]["none"] == NoDrafter.__doc__.replace("``", "")
    assert found["verifiers"].keys() >= {"coupled", "rejection"}
    assert all(found["drafters"].values())


def test_model_without_tokenizer_is_described(capsys, tmp_path):
    found = inspect(capsys, without_tokenizer(tmp_path / "bare"))
    assert found["tokenizer"]["tokens"] is None


def test_tables(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("paceline.api.inspection.free_memory", lambda device: 1 << 30)
    monkeypatch.setattr("paceline.api.inspection.describe_set", lambda: "avx2")
    monkeypatch.setattr("paceline.api.inspection.available_sets", lambda: ("avx2", "baseline"))
    assert run(["inspect", str(pair().target), "--draft", str(pair().draft), "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    installed = [name for name in (*DRAFTERS, *VERIFIERS) if name not in (*DRAFTERS.builtin, *VERIFIERS.builtin)]
    assert not installed, f"the snapshot is of a machine without drafters of other packages: {installed}"
    snapshots.check("inspect", shown, TARGET=pair().target, DRAFT=pair().draft)


def first_lines(capsys, *words):
    """What it says first, and the command that it ends with, which is parsed."""
    assert run(["inspect", *map(str, words)]) == 0
    says, command = capsys.readouterr().out.splitlines()[:2]
    assert command.startswith("next: paceline ")
    parsed = read_options(shlex.split(command)[2:])
    assert isinstance(parsed, Generate)
    return says, parsed


def test_opens_with_what_runs_it_and_the_command_to_go_on_with(capsys, monkeypatch, tmp_path, others):
    monkeypatch.setattr("paceline.api.inspection.describe_set", lambda: "avx2")
    monkeypatch.setattr("paceline.api.inspection.available_sets", lambda: ("avx2", "baseline"))
    target, draft = map(str, (pair().target, pair().draft))
    says, command = first_lines(capsys, target, "--draft", draft, "--device", "cpu", "--dtype", "float32")
    assert says.startswith(f"{target} runs natively, by Paceline's own code, on the CPU with the kernel for avx2.")
    assert f"{draft} can draft for it" in says
    assert (command.model.model, command.drafting.draft) == (target, draft)
    assert (command.model.dtype, command.model.device) == ("float32", "cpu")
    says, _ = first_lines(capsys, target, "--draft", other_vocabulary(tmp_path / "shared"))
    assert re.search(r"another one: it drafts the tokens .* \(TLI\), \d+% of the vocabulary and \d+%", says)
    other = nothing_in_common(tmp_path / "other")
    says, command = first_lines(capsys, target, "--draft", other)
    assert "cannot draft for it: target" in says and "different vocabularies" in says
    assert (command.drafting.draft, command.drafting.drafter) == (None, "ngram")
    monkeypatch.setattr("paceline.api.inspection.describe_set", lambda: None)
    assert "on the CPU with plain torch operations." in first_lines(capsys, target, "--device", "cpu")[0]
    says, command = first_lines(capsys, others / "gpt2", "--backend", "hf", "--device", "cpu")
    assert "runs by transformers' own code, on cpu." in says and command.model.backend == "hf"
    monkeypatch.setattr("paceline.api.inspection.free_memory", lambda device: 1 << 10)
    assert "It does not fit into memory" in first_lines(capsys, target)[0]


def test_a_model_without_tokenizer_is_given_token_ids(capsys, tmp_path):
    says, command = first_lines(capsys, without_tokenizer(tmp_path / "bare"))
    assert "It has no tokenizer" in says and command.prompt_file is not None


# Who runs it


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Architectures without a native decoder: experts, positions that are learned, keys and values of two sizes."""
    root = tmp_path_factory.mktemp("others")
    for name in ("opt", "qwen2-moe", "deepseek-v3", "gpt2"):
        MODELS[name]().save_pretrained(root / name)
    REFUSED["mamba"][0]().save_pretrained(root / "mamba")
    return root


@pytest.mark.parametrize("name", ["opt", "qwen2-moe", "deepseek-v3"])
def test_a_model_without_a_native_decoder_is_described_as_the_adapter_loads_it(name, others, capsys):
    words = ["--batch-size", 3, "--context", 100, "--num-draft-tokens", 4, "--dtype", "float32"]
    found = inspect(capsys, others / name, *words)
    loaded = load(others / name, dtype="float32")
    assert isinstance(loaded.lm, TransformersLM) and found["model"]["backend"] == "hf"
    model, shape = found["model"], loaded.lm.info.shape
    assert model["parameters"] == sum(p.numel() for p in loaded.lm.model.parameters())
    assert (model["architecture"], model["vocabulary"]) == (loaded.config["model_type"], loaded.lm.vocab_size)
    assert (model["context"], model["layers"]) == (loaded.lm.max_positions, loaded.lm.num_layers)
    assert (model["kv_heads"], model["head_dim"], model["heads"]) == (shape.num_heads, shape.head_dim, 4)
    assert model["precision"][0] == "float64" and model["hidden_size"] == 32
    storage = Engine(loaded, batch_size=3, max_length=100, num_draft_tokens=4).decoder.cache.storage
    taken = storage.keys.numel() * 2 * storage.keys.element_size()
    assert 0.7 * taken < found["memory"]["cache"] < 1.5 * taken


LONG = dict(rope_theta=10000.0, factor=2.0, short_factor=[1.0] * 4, long_factor=[2.0] * 4)
ROTATIONS = {
    "dynamic": ("Llama", dict(rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0))),
    "longrope": (
        "Phi3",
        dict(rope_parameters=dict(LONG, rope_type="longrope"), original_max_position_embeddings=64, pad_token_id=0),
    ),
}


@pytest.mark.parametrize("name", ROTATIONS)
def test_rotations_that_depend_on_the_length_need_no_weights_either(name, tmp_path, capsys):
    kind, options = ROTATIONS[name]
    make(kind, SIZES, "pad_token_id", **options).save_pretrained(tmp_path)
    found = inspect(capsys, tmp_path, "--backend", "hf")
    loaded = load(tmp_path, backend="hf")
    assert found["model"]["attention_window"] == loaded.lm.max_slots
    assert (found["model"]["kv_heads"], found["model"]["context"]) == (2, loaded.lm.max_positions)


@pytest.mark.parametrize(
    ("words", "backend"), [([], "native"), (["--backend", "native"], "native"), (["--backend", "hf"], "hf")]
)
def test_the_backend_that_runs_a_model_is_named(words, backend, others, capsys):
    found = inspect(capsys, others / "gpt2", *words, "--dtype", "float32")
    other = inspect(capsys, others / "gpt2", "--dtype", "float32")
    assert found["model"].pop("backend") == backend and other["model"].pop("backend") == "native"
    for section in (found, other):
        section["memory"].pop("free"), section["memory"].pop("rows_that_fit"), section.pop("kernel", None)
        section.pop("conclusion")
    assert found == other, "and nothing else depends on it"


def test_table_names_the_backend(others, capsys):
    assert run(["inspect", str(others / "opt")]) == 0
    assert "hf: transformers' own code" in " ".join(capsys.readouterr().out.split())


NOT_RUN = {
    "no decoder": (["opt", "--backend", "native"], "unsupported architecture 'opt'"),
    "recurrent": (["mamba"], "unsupported architecture 'mamba' in"),
    "name": (["opt", "--backend", "transformers"], "--backend transformers: known are auto, native, hf"),
}


@pytest.mark.parametrize("case", NOT_RUN)
def test_unsupported_architectures_are_refused(case, others, capsys):
    (name, *words), message = NOT_RUN[case]
    assert run(["inspect", str(others / name), *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_an_attention_window_limits_the_context(tmp_path, capsys):
    make("Mistral", SIZES, sliding_window=40).save_pretrained(tmp_path)
    for backend in ("native", "hf"):
        found = inspect(capsys, tmp_path, "--backend", backend)
        assert (found["model"]["attention_window"], found["memory"]["context"]) == (40, 39)
        assert run(["inspect", str(tmp_path), "--backend", backend, "--context", "40"]) == 2
        assert "--context 40: give 2 to 39" in capsys.readouterr().err
