"""Loading checkpoint directories into native decoders, saving them, and refusing unusable ones."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

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


@pytest.mark.one_in(3)
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


@pytest.mark.one_in(3)
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
