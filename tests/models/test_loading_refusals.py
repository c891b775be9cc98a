"""Directories that the native decoder cannot load are refused with the reason."""

import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from paceline.models import memory
from paceline.models.loading import ModelError, load
from tests.models.directories import config, tensors
from tests.models.layouts import pair

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
    "missing field": (
        config(hidden_size=None),
        "config.json lacks 'hidden_size': add it, or take the model's own config.json again",
    ),
    "a word for a number": (
        config(hidden_size="wide"),
        "config.json has hidden_size='wide': hidden_size is a whole num",
    ),
    "a part of a layer": (
        config(num_hidden_layers=2.5),
        "config.json has num_hidden_layers=2.5: num_hidden_layers is a w",
    ),
    "a truth for a number": (config(vocab_size=True), "config.json has vocab_size=True: vocab_size is a whole number"),
    "a word for a small number": (
        config(rms_norm_eps="x"),
        "transformers refuses config.json: Validation error for field 'rms_norm_eps': .* correct it, or take the",
    ),
    "a number for a word": (config(model_type=5), "config.json has model_type=5: model_type is a word; correct it"),
    "no heads": (config(num_attention_heads=0), "num_attention_heads=0: a positive count is needed"),
    "odd groups": (
        config(num_key_value_heads=3),
        "num_attention_heads=4 is no multiple of num_key_value_heads=3",
    ),
    "pickle only": (
        pickle_only,
        r"holds no weights, neither model.safetensors nor model.safetensors.index.json; fetch them, or convert pickled "
        r"ones \(\*.bin, \*.pt\) with AutoModelForCausalLM.from_pretrained\(...\).save_pretrained",
    ),
    "missing shard": (lose_a_shard, "shard model-00002-of-.* is named in model.safetensors.index.json but missing"),
    "broken index": (break_the_index, "model.safetensors.index.json is no index of shards; save the model again"),
    "truncated": (truncate, "model.safetensors is not a safetensors file"),
    "no safetensors": (write("model.safetensors", b"hello"), "model.safetensors is not a safetensors file"),
    "missing tensor": (
        tensors(without("model.layers.1.self_attn.v_proj.weight")),
        r"weights do not fit config.json: they lack model.layers.1.self_attn.v_proj.weight; take config.json and all",
    ),
    "superfluous tensor": (
        tensors(adding({"model.layers.0.extra.weight": torch.ones(2)})),
        r"weights do not fit config.json: they hold also model.layers.0.extra.weight; take config.json and all files",
    ),
    "wrong shape": (
        tensors(cut_the_norm),
        r"model.norm.weight has shape \(5,\), config.json asks for \(32,\); take config.json",
    ),
    "precisions": (
        tensors(narrow_the_norm),
        r"tensors differ in precision \(float16, float32\); give dtype='float32' or another",
    ),
    "integers": (
        tensors(quantize_a_layer),
        "model.layers.1.mlp.down_proj.weight holds no floats of 16 to 64 bits: quantized weights are not supported",
    ),
    "quantized": (
        config(quantization_config={"quant_method": "gptq", "bits": 4}),
        r"quantized weights \(quantization_config\) are not supported; give unquantized ones",
    ),
    "another vocabulary": (
        config(vocab_size=60),
        r"model.embed_tokens.weight has shape \(61, 32\), config.json asks for \(60, 32\)",
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
    "a word for a small number": (
        config(layer_norm_epsilon="x"),
        "config.json has layer_norm_epsilon='x': .* is a numb",
    ),
    "missing tensor": (
        tensors(without("transformer.h.2.attn.c_attn.bias")),
        r"weights do not fit config.json: they lack transformer.h.2.attn.c_attn.bias; take",
    ),
    "wrong shape": (
        tensors(adding({"transformer.h.0.attn.c_attn.weight": torch.ones(32, 95)})),
        r"transformer.h.0.attn.c_attn.weight has shape \(95, 32\), config.json asks for \(96, 32\)",
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
