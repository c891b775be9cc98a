"""Loading checkpoint directories into native decoders, saving them, and refusing unusable ones."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from paceline.models import memory
from paceline.models.families import FAMILIES
from paceline.models.loading import ModelError, build, load, read_config, save
from paceline.models.native.fused_weights import split_parts
from tests import tiny
from tests.models.directories import config, tensors
from tests.models.layouts import LAYOUTS, LINEAR_ROPE, LLAMA3_ROPE, pair, plain, shaken, texts


def same(ours, model, length=20):
    text = texts(1, length)
    with torch.no_grad():
        torch.testing.assert_close(ours.causal(text).logits[0], plain(model, text[0].tolist()), rtol=0, atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", ["20KB", "1GB"], ids=["sharded", "single"])
def test_a_directory_saved_by_transformers_loads_with_equal_logits(layout, size, tmp_path):
    model, _ = pair(layout)
    model.save_pretrained(tmp_path, max_shard_size=size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (size == "20KB")
    ours = load(tmp_path)
    assert ours.dtype == torch.float32 and not ours.training
    assert not any(parameter.requires_grad for parameter in ours.parameters())
    same(ours, model)


OLD_SPELLINGS = {
    "default": ({"rope_type": "default", "rope_theta": 777.0}, {"rope_theta": 777.0}),
    "llama3": (
        LLAMA3_ROPE,
        {"rope_theta": 500000.0, "rope_scaling": {k: v for k, v in LLAMA3_ROPE.items() if k != "rope_theta"}},
    ),
    "linear": (LINEAR_ROPE, {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 4.0}}),
}


@pytest.mark.parametrize("name", OLD_SPELLINGS)
def test_old_and_new_spellings_of_rope_mean_the_same(name, tmp_path):
    new, old = OLD_SPELLINGS[name]
    model = tiny.llama(dtype=torch.float32, rope_parameters=new)
    model.save_pretrained(tmp_path)
    assert "rope_parameters" in json.loads((tmp_path / "config.json").read_text())
    from_new = load(tmp_path)
    config(rope_parameters=None, **old)(tmp_path)
    from_old = load(tmp_path)
    assert from_new.config == from_old.config
    assert from_new.config != tiny.native(tiny.llama(dtype=torch.float32)).config
    same(from_old, model)


def test_configure_does_not_change_the_config():
    raw = tiny.llama().config.to_dict() | {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}
    before = json.dumps(raw, default=str)
    FAMILIES["llama"].configure(raw)
    assert json.dumps(raw, default=str) == before


def test_bfloat16_files_load_in_bfloat16_or_a_given_precision(tmp_path):
    model = shaken(tiny.llama(dtype=torch.bfloat16))
    model.save_pretrained(tmp_path)
    assert {tensor.dtype for tensor in load(tmp_path).state_dict().values()} == {torch.bfloat16}
    assert load(tmp_path).new_cache(1, 4).keys.dtype == torch.bfloat16
    # The model in memory would not do: transformers rounds its angles when it is cast.
    same(load(tmp_path, dtype=torch.float32), AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32))


def test_rotary_angles_stay_exact_when_the_precision_changes():
    ours = tiny.native(tiny.llama(dtype=torch.float32, rope_parameters=LLAMA3_ROPE))
    before = ours.rotary.frequencies.clone()
    for dtype in (torch.bfloat16, torch.float64, torch.float32):
        ours.to(dtype)
        assert ours.rotary.frequencies.dtype == torch.float32
        assert torch.equal(ours.rotary.frequencies, before)
    assert not torch.equal(before.bfloat16().float(), before), "rounding would have been seen"
    cos, sin = ours.rotary(torch.tensor([[100]]), torch.bfloat16)
    assert cos.dtype == sin.dtype == torch.bfloat16


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_saved_model_loads_here_and_in_transformers(layout, tmp_path):
    model, ours = pair(layout)
    raw = json.loads(model.config.to_json_string(use_diff=False))
    save(ours, raw, tmp_path / "new", dtype=torch.float32)
    assert read_config(tmp_path / "new") == raw
    back = load(tmp_path / "new")
    assert back.config == ours.config
    for name, tensor in ours.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "new", dtype=torch.float32).eval()
    text = texts(1, 20)[0].tolist()
    torch.testing.assert_close(plain(theirs, text), plain(model, text), rtol=0, atol=0)


def test_saving_rounds_to_bfloat16_by_default(tmp_path):
    model, ours = pair("tied")
    save(ours, model.config.to_dict(), tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    assert "lm_head.weight" not in stored
    assert ours.dtype == torch.float32, "the model itself keeps its precision"


def old_llama(stored):
    stored["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)


def old_gpt2(stored):
    """Tensors without their prefix, and causal masks."""
    masks = {"h.0.attn.bias": torch.ones(1, 1, 128, 128), "h.0.attn.masked_bias": torch.tensor(-1e4)}
    return {name.removeprefix("transformer."): tensor for name, tensor in stored.items()} | masks


def neox(head):
    """The names that the output head has had, and buffers that were saved once."""

    def rename(stored):
        stored[f"{head}.weight"] = stored.pop("embed_out.weight" if "embed_out.weight" in stored else "lm_head.weight")
        stored["gpt_neox.layers.0.attention.bias"] = torch.ones(1, 1, 4, 4)
        stored["gpt_neox.layers.0.attention.masked_bias"] = torch.tensor(-1e9)
        stored["gpt_neox.layers.0.attention.rotary_emb.inv_freq"] = torch.ones(1)

    return rename


OLD_FILES = {
    "llama": ("llama-2", old_llama),
    "gpt2": ("gpt2", old_gpt2),
    "gpt_neox embed_out": ("gpt_neox", neox("embed_out")),
    "gpt_neox lm_head": ("gpt_neox", neox("lm_head")),
}


@pytest.mark.parametrize("case", OLD_FILES)
def test_files_of_old_names_and_with_buffers_load(case, tmp_path):
    layout, rename = OLD_FILES[case]
    model, _ = pair(layout)
    model.save_pretrained(tmp_path)
    tensors(rename)(tmp_path)
    same(load(tmp_path), model)


# Damage to a directory -> the message.


def unlink(name):
    return lambda path: (path / name).unlink()


def write(name, content):
    return lambda path: (path / name).write_bytes(content)


def truncate(path):
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[: len(data) // 2])


def pickle_only(path):
    (path / "model.safetensors").rename(path / "pytorch_model.bin")


def shard(path):
    model = AutoModelForCausalLM.from_pretrained(path)
    (path / "model.safetensors").unlink()
    model.save_pretrained(path, max_shard_size="20KB")
    return sorted(path.glob("model-*.safetensors"))


def lose_a_shard(path):
    shard(path)[1].unlink()


def break_the_index(path):
    shard(path)
    (path / "model.safetensors.index.json").write_text('{"metadata": {}}')


def narrow_the_norm(stored):
    stored["model.norm.weight"] = stored["model.norm.weight"].half()


def quantize_a_layer(stored):
    name = "model.layers.1.mlp.down_proj.weight"
    stored[name] = stored[name].to(torch.int8)


def without(name):
    def remove(stored):
        del stored[name]

    return remove


def adding(more):
    return lambda stored: stored | more


def cut_the_norm(stored):
    stored["model.norm.weight"] = stored["model.norm.weight"][:5].clone()


BROKEN = {
    "no directory": (shutil.rmtree, "no such model directory: .*model; give a directory that holds config.json"),
    "no config": (unlink("config.json"), "not a model: .* has no config.json; give a directory saved with"),
    "broken JSON": (write("config.json", b'{"model_type": '), "not a model: .*config.json is not JSON"),
    "no text": (write("config.json", b"\xff\xfe\x00"), "not a model: .*config.json is not JSON"),
    "no object": (write("config.json", b"[1]"), "not a model: .*config.json holds no JSON object"),
    "architecture": (config(model_type="bert"), "unsupported architecture 'bert' in .*; supported: gpt2, llama"),
    "no architecture": (config(model_type=None), "unsupported architecture None in .*; supported: gpt2, llama"),
    "rope type": (
        config(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
        "rope scaling 'dynamic' is not supported; supported: default, llama3, linear, yarn",
    ),
    "unknown rope type": (
        config(rope_parameters={"rope_type": "spiral", "rope_theta": 1e4}),
        "rope scaling 'spiral' is not supported; supported: default, llama3, linear, yarn",
    ),
    "rope without its factor": (
        config(rope_parameters={"rope_type": "linear", "rope_theta": 1e4}),
        "transformers refuses config.json: Missing required keys .*'factor'",
    ),
    "rope no table": (config(rope_parameters="linear"), "transformers refuses config.json: .*rope_parameters"),
    "partial rotary": (
        config(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "partial_rotary_factor": 0.5}),
        "partial_rotary_factor is not supported by the native decoder",
    ),
    "activation": (config(hidden_act="gelu"), "hidden_act='gelu' is not supported by the native decoder, only 'silu'"),
    "attention bias": (config(attention_bias=True), "attention_bias=True is not supported .* only False"),
    "feed-forward bias": (config(mlp_bias=True), "mlp_bias=True is not supported by the native decoder, only False"),
    "missing field": (config(hidden_size=None), "config.json lacks 'hidden_size'"),
    "no heads": (config(num_attention_heads=0), "num_attention_heads=0: a positive count is needed"),
    "odd groups": (
        config(num_key_value_heads=3),
        "num_attention_heads=4 is no multiple of num_key_value_heads=3",
    ),
    "pickle only": (
        pickle_only,
        r"holds no safetensors weights; convert pickled ones with "
        r"AutoModelForCausalLM.from_pretrained\(...\).save_pretrained",
    ),
    "missing shard": (lose_a_shard, "shard model-00002-of-.* is named in model.safetensors.index.json but missing"),
    "broken index": (break_the_index, "model.safetensors.index.json is no index of shards; save the model again"),
    "truncated": (truncate, "model.safetensors is not a safetensors file"),
    "no safetensors": (write("model.safetensors", b"hello"), "model.safetensors is not a safetensors file"),
    "missing tensor": (
        tensors(without("model.layers.1.self_attn.v_proj.weight")),
        r"tensors do not fit its config.json: missing \['blocks.1.attention.value.weight'\], unexpected \[\]",
    ),
    "superfluous tensor": (
        tensors(adding({"model.layers.0.extra.weight": torch.ones(2)})),
        r"missing \[\], unexpected \['blocks.0.extra.weight'\]",
    ),
    "wrong shape": (
        tensors(cut_the_norm),
        r"norm.weight has shape \(5,\), config.json asks for \(32,\)",
    ),
    "precisions": (
        tensors(narrow_the_norm),
        r"tensors differ in precision \(float16, float32\); give dtype='float32' or another",
    ),
    "integers": (
        tensors(quantize_a_layer),
        "blocks.1.ffn.down.weight holds no floats of 16 to 64 bits: quantized weights are not supported",
    ),
    "quantized": (
        config(quantization_config={"quant_method": "gptq", "bits": 4}),
        r"quantized weights \(quantization_config\) are not supported; give unquantized ones",
    ),
    "another vocabulary": (
        config(vocab_size=60),
        r"embed.weight has shape \(61, 32\), config.json asks for \(60, 32\)",
    ),
}
BROKEN_GPT2 = {
    "activation": (
        config(activation_function="relu"),
        "activation_function='relu' is not supported by the native decoder, only 'gelu_new'",
    ),
    "scaling by layer": (
        config(scale_attn_by_inverse_layer_idx=True),
        "scale_attn_by_inverse_layer_idx=True is not supported by the native decoder, only False",
    ),
    "no scaling": (config(scale_attn_weights=False), "scale_attn_weights=False is not supported .* only True"),
    "missing field": (config(n_head=None), "config.json lacks 'n_head'"),
    "missing tensor": (
        tensors(without("transformer.h.2.attn.c_attn.bias")),
        r"missing \['blocks.2.attention.key.bias', 'blocks.2.attention.query.bias', 'blocks.2.attention.value.bias'\]",
    ),
    "wrong shape": (
        tensors(adding({"transformer.h.0.attn.c_attn.weight": torch.ones(32, 95)})),
        r"blocks.0.attention.qkv.weight has shape \(95, 32\), config.json asks for \(96, 32\)",
    ),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A directory of each family that loads."""
    folders = {}
    for layout in ("grouped", "gpt2"):
        folders[layout] = tmp_path_factory.mktemp(layout) / "model"
        pair(layout)[0].save_pretrained(folders[layout])
        load(folders[layout])
    return folders


@pytest.mark.parametrize(
    ("layout", "spoil", "message"),
    [("grouped", *case) for case in BROKEN.values()] + [("gpt2", *case) for case in BROKEN_GPT2.values()],
    ids=[*BROKEN, *(f"gpt2 {name}" for name in BROKEN_GPT2)],
)
def test_a_directory_that_cannot_be_used_is_refused_with_the_reason(layout, spoil, message, whole, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(whole[layout], path)
    spoil(path)
    with pytest.raises(ModelError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value), "the message names the directory"


def test_a_file_in_place_of_a_directory_is_no_model(tmp_path):
    (tmp_path / "file").write_text("hello")
    with pytest.raises(ModelError, match="not a model"):
        load(tmp_path / "file")


def test_build_does_not_change_the_given_tensors():
    _, ours = pair("tied")
    state = split_parts(ours.config, ours.state_dict()) | {"head.weight": ours.embed.weight}
    names = set(state)
    build(ours.config, state)
    assert set(state) == names


def widen_one(stored):
    name = next(name for name in stored if name.endswith("weight"))
    stored[name] = stored[name].double()


@pytest.mark.parametrize("layout", ["tied", "gpt2"])
def test_a_file_of_mixed_precisions_needs_a_given_precision(layout, tmp_path):
    model, _ = pair(layout)
    model.save_pretrained(tmp_path)
    tensors(widen_one)(tmp_path)
    same(load(tmp_path, dtype=torch.float32), model)
    with pytest.raises(ModelError, match=r"differ in precision \(float32, float64\)"):
        load(tmp_path)


@pytest.mark.parametrize("layout", ["grouped", "gpt2"])
def test_loaded_weights_are_contiguous(layout, tmp_path):
    # Products with transposed views cost more on some machines, so what is read anew is laid out for them.
    pair(layout)[0].save_pretrained(tmp_path)
    assert all(parameter.is_contiguous() for parameter in load(tmp_path).parameters())


@pytest.mark.parametrize(
    ("layout", "dtype", "remedy"),
    [
        ("grouped", None, "give dtype='bfloat16' or a larger machine"),
        ("tied", torch.float32, "give dtype='bfloat16' or a larger machine"),
        ("gpt2", torch.bfloat16, "give a smaller model or a larger machine"),
    ],
)
def test_weights_that_exceed_free_memory_are_refused_before_they_are_read(layout, dtype, remedy, tmp_path, monkeypatch):
    model, ours = pair(layout)
    model.save_pretrained(tmp_path)
    needed = sum(parameter.numel() for parameter in ours.parameters()) * (dtype or torch.float32).itemsize
    asked = []
    monkeypatch.setattr(memory, "free_memory", lambda device: asked.append(device) or needed)
    load(tmp_path, dtype=dtype)
    assert asked == [torch.device("cpu")]
    monkeypatch.setattr(memory, "free_memory", lambda device: needed - 1)
    monkeypatch.setattr("paceline.models.loading._tensors", None)  # reading would call it
    with pytest.raises(ModelError, match=rf"weights of .* GiB exceed the .* GiB free on cpu: {remedy}"):
        load(tmp_path, dtype=dtype)


def test_free_memory_is_what_could_be_allocated():
    before = memory.free_memory("cpu")
    assert 2**20 < before < 2**50


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_free_memory_of_cuda_counts_what_the_allocator_keeps():
    before = memory.free_memory("cuda")
    block = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    during = memory.free_memory("cuda")
    assert before - during >= 2**28
    del block
    assert memory.free_memory("cuda") - during >= 2**28
