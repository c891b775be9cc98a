"""Llama, and what the families of its layout share with it."""

from paceline.models.families.base import (
    SIZES,
    Fields,
    Names,
    activation,
    complete,
    integer,
    number,
    renaming,
    require,
    rotary,
)
from paceline.models.native.config import DecoderConfig, FFNConfig

NAMES: Names = (
    ("model.embed_tokens", "embed"),
    ("model.norm", "norm"),
    ("lm_head", "head"),
    ("model.layers", "blocks"),
    ("self_attn.q_proj", "attention.query"),
    ("self_attn.k_proj", "attention.key"),
    ("self_attn.v_proj", "attention.value"),
    ("self_attn.o_proj", "attention.output"),
    ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn.gate"),
    ("mlp.up_proj", "ffn.up"),
    ("mlp.down_proj", "ffn.down"),
)
PLAIN = {
    **dict.fromkeys((*SIZES, "num_key_value_heads", "max_position_embeddings"), int),
    **dict.fromkeys(("attention_bias", "mlp_bias", "tie_word_embeddings"), bool),
    "hidden_act": str,
    "rms_norm_eps": float,
}


def shape(fields: Fields, *, partial: bool = False, wide: bool = False) -> DecoderConfig:
    """The decoder of a config with Llama's fields; ``partial`` and ``wide`` as in ``rotary``. Raises ValueError."""
    hidden, heads = integer(fields, "hidden_size"), integer(fields, "num_attention_heads")
    kv_heads, head_dim = integer(fields, "num_key_value_heads", heads), integer(fields, "head_dim", hidden // heads)
    if heads % kv_heads:
        raise ValueError(f"num_attention_heads={heads} is no multiple of num_key_value_heads={kv_heads}")
    return DecoderConfig(
        vocab_size=integer(fields, "vocab_size"),
        hidden_size=hidden,
        num_layers=integer(fields, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_size=integer(fields, "intermediate_size"),
        max_positions=integer(fields, "max_position_embeddings"),
        norm_eps=number(fields, "rms_norm_eps", 1e-6),
        rotary=rotary(fields, head_dim, partial=partial, wide=wide),
        ffn=FFNConfig(activation=activation(fields), bias=bool(fields.get("mlp_bias", False))),
        tied_head=bool(fields.get("tie_word_embeddings", False)),
    )


def _configure(raw: dict[str, object]) -> DecoderConfig:
    require(raw, "hidden_act", "silu", "silu")
    require(raw, "attention_bias", False, False)
    require(raw, "mlp_bias", False, False)
    even = integer(raw, "hidden_size") % integer(raw, "num_attention_heads") == 0  # else transformers refuses it
    return shape(complete(raw, PLAIN if even else None))


FAMILIES = {"llama": renaming(_configure, NAMES)}
