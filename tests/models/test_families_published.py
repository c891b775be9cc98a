"""config.json as publishers write it, old spellings included: fields that tiny configs of today's transformers lack."""

import pytest

from paceline.models.families import FAMILIES
from paceline.models.loading import ModelError, configure
from paceline.models.native.config import Arrangement
from paceline.models.native.layers import gelu_tanh


def sizes(vocab, hidden, inner, layers, heads, **more):
    return dict(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        **more,
    )


COMMON = dict(attention_dropout=0.0, bos_token_id=1, eos_token_id=2, initializer_range=0.02, use_cache=True)
MISTRAL = sizes(32000, 4096, 14336, 32, 32, num_key_value_heads=8, max_position_embeddings=32768, rms_norm_eps=1e-5)
PUBLISHED = {
    "mistral with a window": {
        **COMMON,
        **MISTRAL,
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.34.0.dev0",
    },
    "mistral without": {
        **COMMON,
        **MISTRAL,
        "model_type": "mistral",
        "hidden_act": "silu",
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "torch_dtype": "bfloat16",
    },
    "qwen2": {
        **COMMON,
        **sizes(151936, 896, 4864, 24, 14, num_key_value_heads=2, max_position_embeddings=32768, rms_norm_eps=1e-6),
        "model_type": "qwen2",
        "hidden_act": "silu",
        "max_window_layers": 21,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "use_mrope": False,
        "use_sliding_window": False,
    },
    "qwen3": {
        **COMMON,
        **sizes(151936, 1024, 3072, 28, 16, num_key_value_heads=8, max_position_embeddings=40960, rms_norm_eps=1e-6),
        "model_type": "qwen3",
        "attention_bias": False,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_window_layers": 28,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    },
    "gpt_neox": {
        **sizes(50304, 512, 2048, 6, 8, max_position_embeddings=2048),
        "model_type": "gpt_neox",
        "architectures": ["GPTNeoXForCausalLM"],
        "bos_token_id": 0,
        "eos_token_id": 0,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-05,
        "rotary_emb_base": 10000,
        "rotary_pct": 0.25,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "use_parallel_residual": True,
    },
    "olmo2": {
        **COMMON,
        **sizes(100352, 2048, 8192, 16, 16, num_key_value_heads=16, max_position_embeddings=4096, rms_norm_eps=1e-6),
        "model_type": "olmo2",
        "attention_bias": False,
        "hidden_act": "silu",
        "rope_scaling": None,
        "rope_theta": 500000,
        "tie_word_embeddings": False,
    },
    "phi3": {
        **COMMON,
        **sizes(32064, 3072, 8192, 32, 32, num_key_value_heads=32, max_position_embeddings=4096, rms_norm_eps=1e-5),
        "model_type": "phi3",
        "attention_bias": False,
        "embd_pdrop": 0.0,
        "hidden_act": "silu",
        "original_max_position_embeddings": 4096,
        "pad_token_id": 32000,
        "resid_pdrop": 0.0,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": 2047,
        "tie_word_embeddings": False,
    },
    "gemma": {
        **COMMON,
        **sizes(256000, 2048, 16384, 18, 8, num_key_value_heads=1, max_position_embeddings=8192, rms_norm_eps=1e-6),
        "model_type": "gemma",
        "attention_bias": False,
        "head_dim": 256,
        "hidden_act": "gelu",
        "hidden_activation": None,
        "rope_scaling": None,
        "rope_theta": 10000.0,
    },
    "granite": {
        **COMMON,
        **sizes(49155, 2048, 8192, 40, 32, num_key_value_heads=8, max_position_embeddings=131072, rms_norm_eps=1e-5),
        "model_type": "granite",
        "attention_bias": False,
        "attention_multiplier": 0.015625,
        "embedding_multiplier": 12.0,
        "hidden_act": "silu",
        "logits_scaling": 8.0,
        "mlp_bias": False,
        "residual_multiplier": 0.22,
        "rope_scaling": None,
        "rope_theta": 5000000.0,
        "tie_word_embeddings": True,
    },
    "smollm3": {
        **COMMON,
        **sizes(128256, 2048, 11008, 36, 16, num_key_value_heads=4, max_position_embeddings=65536, rms_norm_eps=1e-6),
        "model_type": "smollm3",
        "attention_bias": False,
        "hidden_act": "silu",
        "layer_types": ["full_attention"] * 36,
        "max_window_layers": 28,
        "mlp_bias": False,
        "no_rope_layer_interval": 4,
        "no_rope_layers": [1, 1, 1, 0] * 9,
        "pretraining_tp": 2,
        "rope_scaling": None,
        "rope_theta": 5000000.0,
        "sliding_window": None,
        "use_sliding_window": False,
    },
}
# Name -> size of a head, numbers turned in it, window, tied head
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
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_is_read(name):
    raw = PUBLISHED[name]
    found = configure(raw, name)
    turned = 2 * len(found.rotary.inverse_frequencies)
    assert (found.head_dim, turned, found.window, found.tied_head) == EXPECTED[name]
    assert found.hidden_size == raw["hidden_size"] and found.max_positions == raw["max_position_embeddings"]
    assert found.num_kv_heads == raw.get("num_key_value_heads", found.num_heads)


def test_details_of_published_configs_arrive():
    found = {name: configure(raw, name) for name, raw in PUBLISHED.items()}
    assert found["gpt_neox"].arrangement is Arrangement.PARALLEL and found["gpt_neox"].attention.output_bias
    assert found["qwen2"].attention.bias and not found["qwen2"].attention.output_bias
    assert found["gemma"].ffn.activation is gelu_tanh
    assert found["granite"].attention.scale == 1 / 64 and found["granite"].multipliers.logits == 8.0
    assert found["smollm3"].attention.unrotated == frozenset(range(3, 36, 4))
    assert abs(found["smollm3"].rotary.inverse_frequencies[1] - 5e6 ** (-2 / 128)) < 1e-6


def test_the_published_configs_are_of_every_family_beside_the_first():
    assert {raw["model_type"] for raw in PUBLISHED.values()} | {"gpt2", "llama"} == set(FAMILIES)


def test_phi3_with_long_rope_is_refused_by_name():
    factors = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    raw = {**PUBLISHED["phi3"], "max_position_embeddings": 131072, "rope_scaling": factors, "sliding_window": 262144}
    with pytest.raises(ModelError, match="rope scaling 'longrope' is not supported"):
        configure(raw, "model")
