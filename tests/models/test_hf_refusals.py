"""What the adapter refuses: kinds of models, wrong results on trees, sequences beyond a window, unusable files."""

import shutil
import sys

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from transformers import StableLmForCausalLM, dynamic_module_utils

from paceline.models import memory
from paceline.models.adapter import files as hf_files
from paceline.models.adapter.lm import adapt
from paceline.models.loading import ModelError
from tests.models.adapter_models import GPT_NEO, LLAMA4, MODELS, REFUSED, SIZES, make, shaken
from tests.models.directories import config, tensors
from tests.tiny import VOCAB


@pytest.mark.parametrize("name", REFUSED)
def test_an_unsupported_kind_of_model_is_refused_with_the_reason(name):
    maker, reason = REFUSED[name]
    with pytest.raises(ModelError, match=reason) as refusal:
        adapt(maker())
    assert "; give " in str(refusal.value), "the way out"


# Models that are wrong on trees; the probe must find the difference.


def model_class(name, *, inputs=lambda mask, positions: (mask, positions), output=lambda logits: None):
    """A model that changes the mask and the positions that it is given, or its logits, where it runs on a tree."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **options):
        on_tree = attention_mask is not None
        if on_tree:
            attention_mask, position_ids = inputs(attention_mask, position_ids)
        found = StableLmForCausalLM.forward(
            self, input_ids, attention_mask=attention_mask, position_ids=position_ids, **options
        )
        if on_tree:
            output(found.logits)
        return found

    return type(name, (StableLmForCausalLM,), {"forward": forward})


def reads_scratch(mask, positions):
    mask = mask.clone()
    mask[..., -1] = 0
    return mask, positions


def reads_siblings(mask, positions):
    """Causal in the order of the slots: a node sees the other branches too."""
    seen = mask == 0
    below = torch.arange(seen.shape[-1]) <= (seen * torch.arange(seen.shape[-1])).amax(-1, keepdim=True)
    return mask.masked_fill(below, 0), positions


def changes_one_node(logits):
    if logits.shape[1] > 4:
        logits[1, 6] += 0.01 * logits.std() * torch.randn(VOCAB)


Maskless = model_class("Maskless", inputs=lambda mask, positions: (None, positions))
# Right on every chain: the first new position and those after it.
SlotPositions = model_class(
    "SlotPositions", inputs=lambda mask, positions: (mask, positions[:, :1] + torch.arange(positions.shape[1]))
)
# Right while all rows are equally long.
EvenRows = model_class("EvenRows", inputs=lambda mask, positions: (mask, positions[:1].expand_as(positions)))
ScratchReader = model_class("ScratchReader", inputs=reads_scratch)
Siblings = model_class("Siblings", inputs=reads_siblings)
Undefined = model_class("Undefined", output=lambda logits: logits[:, -1].fill_(torch.nan))
Hasty = model_class("Hasty", output=changes_one_node)


class Failing(StableLmForCausalLM):
    def forward(self, input_ids=None, attention_mask=None, **options):
        if attention_mask is not None:
            raise IndexError("of two axes, please\nand more")
        return super().forward(input_ids, **options)


WRONG = [Maskless, SlotPositions, EvenRows, ScratchReader, Siblings, Undefined, Hasty]


def instance(kind):
    torch.manual_seed(1)
    return shaken(kind(hf.StableLmConfig(**SIZES)).to(torch.float64).eval())


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_a_model_that_is_wrong_on_trees_is_refused_with_the_difference(kind):
    message = (
        rf"{kind.__name__} cannot be run on trees: logits differ .* by up to (0\.\d+|\d.*|inf) standard deviations, "
        "where 0.001 is allowed for float64; its attention ignores a mask of four axes, or it derives positions from"
    )
    with pytest.raises(ModelError, match=message):
        adapt(instance(kind))


@pytest.mark.parametrize("kind", [Maskless, SlotPositions, EvenRows, Siblings], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_model_is_refused_in_lower_precision(kind, dtype):
    with pytest.raises(ModelError, match="cannot be run on trees"):
        adapt(instance(kind).to(dtype))


def test_an_error_of_the_model_is_reported_in_one_line():
    with pytest.raises(ModelError, match=r"four axes over slots \(IndexError: of two axes, please\); give a model"):
        adapt(instance(Failing))


# States of a model


def test_a_model_in_training_mode_is_refused_when_loaded_and_when_run():
    model = MODELS["stablelm"]()
    with pytest.raises(ModelError, match=r"training mode, where it draws random dropout: call model.eval\(\)"):
        adapt(model.train())
    ours = adapt(model.eval())
    model.train()
    with pytest.raises(ModelError, match=r"training mode: call model.eval\(\)"):
        ours(None, ours.new_cache(1, 4).view())


def test_a_model_without_a_head_is_refused():
    model = hf.StableLmModel(hf.StableLmConfig(**SIZES)).eval()
    with pytest.raises(ModelError, match="StableLmModel has no language-model head; load it with AutoModelForCausalLM"):
        adapt(model)


def test_a_model_without_storage_or_on_two_devices_is_refused():
    model = MODELS["stablelm"]()
    model.lm_head.to("meta")
    with pytest.raises(ModelError, match=r"lm_head.weight has no storage \(meta\); load the model without offloading"):
        adapt(model)


def test_some_of_the_layers_cannot_be_run():
    ours = adapt(MODELS["stablelm"]())
    view = ours.new_cache(1, 4).view()
    with pytest.raises(ValueError, match="runs all of its layers: load it with backend='native' to run some"):
        ours(None, view.apart([0, 1]))


def test_a_context_too_short_to_probe_is_refused():
    with pytest.raises(ModelError, match="a context of 16 tokens is too short to be probed"):
        adapt(make("StableLm", {**SIZES, "max_position_embeddings": 16}))


# Windows

LONG_ROPE = dict(
    original_max_position_embeddings=64,
    rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0] * 4, long_factor=[2.0] * 4),
)
WINDOWS = {
    "sliding": lambda: make("Starcoder2", SIZES, sliding_window=64),
    "in some layers": lambda: make("Cohere2", SIZES, sliding_window=64, sliding_window_pattern=2),
    "experts": lambda: make("Mixtral", SIZES, num_local_experts=4, sliding_window=64),
    "chunked": lambda: make("Llama4Text", SIZES, **{**LLAMA4, "attention_chunk_size": 64}),
    "by another name": lambda: make("Doge", SIZES, keep_window_size=64, attn_implementation="eager"),
    "local layers": lambda: make("GPTNeo", SIZES, "num_attention_heads", **GPT_NEO, window_size=64),
    "longrope": lambda: make("Phi3", SIZES, "pad_token_id", **LONG_ROPE, pad_token_id=0),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_a_cache_beyond_the_window_is_refused_with_both_numbers(name):
    ours = adapt(WINDOWS[name]())
    assert ours.new_cache(1, 64).capacity == 64 == ours.max_slots
    with pytest.raises(
        ValueError, match=r"sequences of up to 65 slots, drafts included, are longer than 64: .*; lower max"
    ):
        ours.new_cache(1, 65)


def test_a_window_longer_than_the_context_is_no_limit():
    ours = adapt(make("Starcoder2", SIZES, sliding_window=512))
    assert ours.info.limit is None and ours.max_slots is None and ours.new_cache(1, 4000).capacity == 4000


BEFORE_5_18 = tuple(map(int, hf.__version__.split(".")[:2])) < (5, 18)


def reads_what_comes_after(model):
    """Whether the plain forward lets a token attend to later ones."""
    one, other = (model(input_ids=torch.tensor([[1, 2, 3, token]]), use_cache=False).logits[0, :3] for token in (4, 5))
    return not torch.allclose(one, other)


@torch.no_grad()
def test_a_model_whose_own_forward_is_not_causal_is_refused():
    """Doge with sdpa before transformers 5.18: its plain forward is not causal, so no cached forward can equal it."""
    doge = make("Doge", SIZES, attn_implementation="sdpa")
    assert reads_what_comes_after(doge) == BEFORE_5_18
    if BEFORE_5_18:
        with pytest.raises(ModelError, match="logits differ from those of its plain forward"):
            adapt(doge)
    else:
        assert adapt(doge).model is doge


# Directories


@pytest.fixture
def folder(tmp_path):
    MODELS["opt"]().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def pickled(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


WEIGHT = "model.decoder.layers.1.fc1.weight"


def as_gguf(folder):
    (folder / "model.safetensors").rename(folder / "model.gguf")


def as_adapter(folder):
    (folder / "adapter_config.json").write_text("{}")
    (folder / "config.json").unlink()


DIRECTORIES = {
    "pickled": (
        pickled,
        r"no safetensors weights, only pickled ones \(pytorch_model.bin\), which could run any code; c",
    ),
    "empty": (lambda folder: (folder / "model.safetensors").unlink(), "no safetensors weights, nothing else either"),
    "missing tensor": (
        tensors(lambda stored: {n: t for n, t in stored.items() if n != WEIGHT}),
        r"missing or of another shape \['model.decoder.layers.1.fc1.weight'\]",
    ),
    "other shape": (
        tensors(lambda stored: stored | {WEIGHT: torch.zeros(7, 32)}),
        "model.decoder.layers.1.fc1.weight|transformers refuses it",
    ),
    "gguf": (as_gguf, "GGUF is for another runtime; give the directory that it was made from"),
    "adapter": (as_adapter, r"holds an adapter \(PEFT\), not a model; merge it with .*merge_and_unload"),
    "unknown": (
        config(model_type="none-such"),
        "unsupported architecture, which neither Paceline nor transformers",
    ),
    "mamba": (config(model_type="mamba"), "unsupported architecture 'mamba' in .*: its recurrent"),
    "t5": (config(model_type="t5", is_encoder_decoder=True), "unsupported architecture 't5' in .*encoder-decoder"),
    "quantized": (
        config(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}),
        "its quantized weights need a library .*; install what is named, or give unquantized weights",
    ),
}


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_directory_that_cannot_be_used_is_refused_with_the_way_out(name, folder, monkeypatch):
    spoil, message = DIRECTORIES[name]
    spoil(folder)
    monkeypatch.setattr(torch, "load", None)
    with pytest.raises(ModelError, match=message):
        hf_files.check_format(folder)
        adapt(hf_files.load(folder))


def test_files_in_place_of_directories_are_refused(folder):
    gguf = folder / "model-q4.gguf"
    gguf.write_bytes(b"GGUF")
    for file, message in ((gguf, "GGUF is for another"), (folder / "model.safetensors", "is a file; give the dir")):
        with pytest.raises(ModelError, match=message):
            hf_files.check_format(file)
    hf_files.check_format(folder)  # beside safetensors it disturbs nobody


def test_weights_larger_than_memory_are_refused_before_they_are_read(folder, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 1000)
    monkeypatch.setattr(hf_files, "AutoModelForCausalLM", None)
    with pytest.raises(
        ModelError, match=r"weights of .* GiB exceed the 9.31e-07 GiB free on cpu: give a smaller model"
    ):
        hf_files.load(folder)


def test_code_of_a_directory_runs_only_where_it_is_trusted(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    trace = tmp_path / "ran"
    (folder / "own_code.py").write_text(
        f"from transformers import OPTConfig, OPTForCausalLM\nopen({str(trace)!r}, 'w').close()\n"
        "class OwnConfig(OPTConfig):\n    model_type = 'own-opt'\n"
        "class OwnModel(OPTForCausalLM):\n    config_class = OwnConfig\n"
    )
    config(
        model_type="own-opt",
        auto_map={"AutoConfig": "own_code.OwnConfig", "AutoModelForCausalLM": "own_code.OwnModel"},
    )(folder)
    with pytest.raises(
        ModelError, match="if the directory brings its own code and you trust it, give trust_remote_code"
    ):
        hf_files.load(folder)
    assert not trace.exists()
    trusted = True
    assert type(adapt(hf_files.load(folder, trust_remote_code=trusted)).model).__name__ == "OwnModel"
    assert trace.exists()


def test_a_directory_loads_in_its_own_or_a_given_precision(folder):
    shutil.copy(folder / "config.json", folder / "notes.bin")  # other files disturb nobody
    model = hf_files.load(folder)
    assert model.dtype == torch.float64 and not model.training
    assert hf_files.load(folder, dtype=torch.float32).dtype == torch.float32
    assert not any(parameter.requires_grad for parameter in model.parameters())
