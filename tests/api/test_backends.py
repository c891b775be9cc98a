"""``backend``: the native decoder, or transformers' own code for other architectures; the API works with both."""

import copy
import gc
import json
import shutil
import weakref
from functools import cache

import pytest
import torch
from transformers import AutoModelForCausalLM

import paceline
from paceline import hf as drop_in
from paceline.api.loading import load
from paceline.api.targets import load_cached
from paceline.models.adapter.lm import TransformersLM
from paceline.models.loading import ModelError
from paceline.models.native.decoder import DecoderLM
from tests import reference
from tests.api.checkpoints import config_of, pair
from tests.models.adapter_models import MODELS, SIZES, make

PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]]


@cache
def opt():
    return MODELS["opt"]()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An architecture without a native decoder."""
    path = tmp_path_factory.mktemp("opt")
    opt().save_pretrained(path)
    return path


@pytest.mark.parametrize("backend", ["auto", "native"])
def test_a_known_architecture_runs_natively(backend):
    model = AutoModelForCausalLM.from_pretrained(pair().target).eval()
    for given in (pair().target, model):
        assert isinstance(load(given, backend=backend).lm, DecoderLM)


def test_native_architecture_runs_in_transformers_on_request():
    own = load(pair().target)
    other = load(pair().target, backend="hf")
    assert isinstance(other.lm, TransformersLM) and other.dtype == torch.float64 == other.lm.dtype
    assert (other.eos, other.name, other.config) == (own.eos, own.name, own.config)
    assert other.tokenizer.encode("def") == own.tokenizer.encode("def")
    params = paceline.SamplingParams(max_tokens=20, temperature=0.7, seed=4)
    texts = [paceline.generate(one, PROMPTS, params, drafter="ngram", num_draft_tokens=5) for one in (own, other)]
    assert [result.token_ids for result in texts[0]] == [result.token_ids for result in texts[1]]


@pytest.mark.parametrize("backend", ["auto", "hf"])
def test_other_architectures_run_in_transformers(backend, folder):
    for given in (folder, opt()):
        loaded = load(given, backend=backend)
        assert isinstance(loaded.lm, TransformersLM) and loaded.dtype == torch.float64 and loaded.tokenizer is None
        params = paceline.SamplingParams(max_tokens=24, temperature=0)
        results = paceline.generate(loaded, PROMPTS, params, drafter=loaded, num_draft_tokens=3)
        for prompt, result in zip(PROMPTS, results, strict=True):
            assert list(result.token_ids) == reference.decode(opt(), prompt, max_tokens=24)
            assert result.stats.acceptance_rate == 1


def test_loaded_model_is_wrapped_without_a_copy():
    loaded = load(opt())
    assert loaded.lm.model is opt() and loaded.name == "OPTForCausalLM" and loaded.config == opt().config.to_dict()


def test_dtype_of_a_directory_is_kept_or_converted(folder):
    assert load(folder).dtype == torch.float64
    loaded = load(folder, dtype="float32", device="cpu")
    assert loaded.dtype == torch.float32 == loaded.lm.new_cache(1, 4).keys.dtype


REFUSED = [
    (dict(backend="native"), "unsupported architecture 'opt' in .*; supported: "),
    (dict(dtype="float32"), "float32: OPTForCausalLM is already loaded as float64 on cpu; convert it yourself"),
    (dict(revision="v1"), "revision='v1': OPTForCausalLM is loaded already"),
    (dict(backend="vllm"), "backend 'vllm': known are auto, native, hf"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_unsupported_option_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        load(opt(), **options)


def test_other_file_formats_are_refused(folder, tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({}))
    for path, message in (
        (tmp_path / "model.gguf", r"GGUF is converted first, by paceline convert .*model.gguf --output DIR"),
        (str(tmp_path / "model.gguf"), r"GGUF is converted first, by paceline convert .*model.gguf --output DIR"),
        (tmp_path / "adapter", r"holds an adapter \(PEFT\), not a model; merge it"),
        (folder / "model.safetensors", "is a file; give the directory"),
    ):
        for backend in ("auto", "native", "hf"):
            with pytest.raises(ModelError, match=message):
                load(path, backend=backend)


def test_trust_remote_code_is_passed_to_transformers(folder, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("paceline.models.adapter.files.load", lambda path, **options: seen.append(options) or opt())
    for trusted in (False, True):
        load(folder, device="cpu", trust_remote_code=trusted)
    assert [options["trust_remote_code"] for options in seen] == [False, True]


def test_sequence_beyond_the_window_is_refused_before_any_work():
    loaded = load(make("Starcoder2", SIZES, sliding_window=48))
    params = paceline.SamplingParams(max_tokens=20, temperature=0)
    assert len(paceline.generate(loaded, [[1, 2, 3]], params)[0].token_ids) == 20
    with pytest.raises(ValueError, match=r"sequences of up to \d+ slots, drafts included, are longer than 48"):
        paceline.generate(loaded, [[1] * 40], params)


# The drop-in for model.generate


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["opt", "gptj", "qwen2-moe", "falcon"])
def test_drop_in_matches_transformers_with_the_adapter(name):
    model = MODELS[name]()
    ids = torch.tensor(PROMPTS[:1])
    wanted = model.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0)
    for options in (dict(prompt_lookup_num_tokens=3), dict(assistant_model=copy.deepcopy(model))):
        found = drop_in.generate(model, ids, max_new_tokens=20, do_sample=False, pad_token_id=0, **options)
        assert torch.equal(found, wanted)


def assert_same_text(model):
    ids, options = torch.tensor(PROMPTS[:1]), dict(max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert torch.equal(drop_in.generate(model, ids, **options), model.generate(ids, **options))


def test_drop_in_sees_changed_weights_and_frees_the_model():
    model = MODELS["opt"]()
    assert_same_text(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    assert_same_text(model)
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    assert_same_text(model)
    model.to(torch.float32)
    assert load_cached(model).dtype == torch.float32
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_drop_in_refuses_training_mode():
    model = MODELS["opt"]().train()
    with pytest.raises(ModelError, match=r"training mode, where it draws random dropout: call model.eval\(\)"):
        drop_in.generate(model, torch.tensor(PROMPTS[:1]), max_new_tokens=3)


def test_scores_match_the_model():
    loaded = load(opt())
    text = PROMPTS[2]
    found = paceline.score(loaded, [text[:1]], [text[1:]])[0]
    with torch.no_grad():
        distribution = opt()(torch.tensor([text])).logits[0].log_softmax(-1)
    wanted = [float(distribution[at, token]) for at, token in enumerate(text[1:])]
    assert list(found.logprobs) == pytest.approx(wanted, abs=1e-4)


# What a known architecture may ask for that our decoder does not know


def test_refusal_of_the_native_decoder_names_the_other_backend(tmp_path):
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    model = make("Llama", SIZES, rope_parameters=rope)
    model.save_pretrained(tmp_path)
    refusal = "rope scaling 'dynamic' is not supported"
    with pytest.raises(ModelError, match=f"{refusal}.*; or give backend='hf', where transformers' own code runs"):
        load(tmp_path)
    with pytest.raises(ModelError, match=refusal) as native:
        load(tmp_path, backend="native")
    assert "backend" not in str(native.value)
    params = paceline.SamplingParams(max_tokens=24, temperature=0)
    results = paceline.generate(load(tmp_path, backend="hf"), PROMPTS, params, drafter="ngram", num_draft_tokens=5)
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert list(result.token_ids) == reference.decode(model, prompt, max_tokens=24)


QUANTIZED = {
    "auto": r"its quantized weights need a library \(.*\); install what is named",
    "hf": r"its quantized weights need a library \(.*\); install what is named",
    "native": r"quantized weights \(quantization_config\) are not supported; give unquantized ones",
}


@pytest.mark.parametrize("backend", QUANTIZED)
def test_quantized_weights_need_their_library(backend, tmp_path):
    shutil.copytree(pair().target, tmp_path, dirs_exist_ok=True)
    config_of(tmp_path, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    with pytest.raises(ModelError, match=QUANTIZED[backend]):
        load(tmp_path, device="cpu", backend=backend)
