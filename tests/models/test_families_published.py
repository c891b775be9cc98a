"""config.json as published, with old spellings and fields that configs saved by current transformers do not have."""

import json
from pathlib import Path

import pytest

from paceline.models.families import DECODERS, base, llama
from paceline.models.loading import ModelError, configure
from paceline.models.native.config import Arrangement
from paceline.models.native.layers import gelu_tanh

PUBLISHED = json.loads((Path(__file__).parent / "published_configs.json").read_text())
# Name -> head size, rotary size, window, tied head
EXPECTED = {
    "mistral with a window": (128, 128, 4096, False),
    "mistral without": (128, 128, None, False),
    "qwen2": (64, 64, None, True),
    "qwen3": (128, 128, None, True),
    "gpt_neox": (64, 16, None, False),
    "olmo2": (128, 128, None, False),
    "phi3": (96, 96, 2047, False),
    "gemma": (256, 256, None, True),
    "granite": (64, 64, None, True),
    "smollm3": (128, 128, None, True),
    "mimo": (128, 128, None, False),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_is_read(name):
    raw = PUBLISHED[name]
    found = configure(raw, name)
    turned = 2 * len(found.rotary.inverse_frequencies)
    assert (found.head_dim, turned, found.window, found.tied_head) == EXPECTED[name]
    assert found.hidden_size == raw["hidden_size"] and found.max_positions == raw["max_position_embeddings"]
    assert found.num_kv_heads == raw.get("num_key_value_heads", found.num_heads)


def test_details_of_published_configs_are_read():
    found = {name: configure(raw, name) for name, raw in PUBLISHED.items()}
    assert found["gpt_neox"].arrangement is Arrangement.PARALLEL and found["gpt_neox"].attention.output_bias
    assert found["qwen2"].attention.bias and not found["qwen2"].attention.output_bias
    assert found["mimo"].attention.bias and found["mimo"].norm_eps == 1e-5
    assert found["gemma"].ffn.activation is gelu_tanh
    assert found["granite"].attention.scale == 1 / 64 and found["granite"].multipliers.logits == 8.0
    assert found["smollm3"].attention.unrotated == frozenset(range(3, 36, 4))
    assert abs(found["smollm3"].rotary.inverse_frequencies[1] - 5e6 ** (-2 / 128)) < 1e-6


def test_every_other_family_has_a_published_config():
    assert {raw["model_type"] for raw in PUBLISHED.values()} | {"gpt2", "llama"} == set(DECODERS)


LLAMA = {
    **{"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5},
    **{"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True},
    "rope_theta": 5e5,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
# What differs from LLAMA, and whether it is read without asking transformers
LLAMAS = {
    "whole": ({}, True),
    "head size": ({"head_dim": 16}, True),
    "no scaling": ({"rope_scaling": None}, True),
    "new spelling": ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "rope_theta": None}, True),
    "no base": ({"rope_theta": None}, False),
    "an old scaling": ({"rope_scaling": {"type": "linear", "factor": 2.0}}, False),
    "a scaling": ({"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 64}}, False),
    "a new scaling": ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}, False),
    "a part rotated": ({"partial_rotary_factor": 0.5}, False),
    "no heads of keys": ({"num_key_value_heads": None}, False),
    "no norm": ({"rms_norm_eps": None}, False),
}


@pytest.mark.parametrize("name", LLAMAS)
def test_what_transformers_is_not_asked_is_what_it_would_say(name, monkeypatch):
    differing, plain = LLAMAS[name]
    raw = {key: value for key, value in {**LLAMA, **differing}.items() if value is not None or key == "rope_scaling"}
    asked = []
    monkeypatch.setattr(base, "parse", lambda fields, parse=base.parse: asked.append(fields) or parse(fields))
    found = configure(raw, name)
    assert (asked == []) == plain
    monkeypatch.setattr(llama, "PLAIN", None)
    assert configure(raw, name) == found and asked


@pytest.mark.parametrize(
    "differing",
    [{"num_attention_heads": 5}, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}],
    ids=str,
)
def test_what_transformers_or_the_decoder_refuses_is_refused_without_asking_too(differing, monkeypatch):
    raw = {**LLAMA, **differing}
    with pytest.raises(ModelError) as first:
        configure(raw, "model")
    monkeypatch.setattr(llama, "PLAIN", None)
    with pytest.raises(ModelError) as second:
        configure(raw, "model")
    assert str(first.value) == str(second.value)


def test_phi3_with_long_rope_is_refused_by_name():
    factors = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    raw = {**PUBLISHED["phi3"], "max_position_embeddings": 131072, "rope_scaling": factors, "sliding_window": 262144}
    with pytest.raises(ModelError, match="rope scaling 'longrope' is not supported"):
        configure(raw, "model")
