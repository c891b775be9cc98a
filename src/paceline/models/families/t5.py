"""T5 and mT5: encoder-decoders with relative positions, RMS norms before each part, and scores that are not scaled."""

from collections.abc import Iterator
from dataclasses import replace
from math import sqrt

import torch.nn.functional as F
from torch import Tensor

from paceline.models.families.base import Family, Fields, Names, integer, number, require, swap
from paceline.models.native.config import (
    AttentionConfig,
    CrossConfig,
    DecoderConfig,
    EncoderConfig,
    FFNConfig,
    Multipliers,
    RelativeBias,
)
from paceline.models.native.layers import gelu_tanh

ACTIVATIONS = {"relu": F.relu, "gelu_new": gelu_tanh, "gelu": F.gelu, "silu": F.silu}
DECODER_LAYERS = "num_decoder_layers"
LONGEST = 1 << 16  # tokens: distances beyond the last bucket are alike, so nothing but memory bounds a text
BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"  # of all layers
NAMES: Names = (
    ("block", "blocks"),
    ("layer.0.SelfAttention", "attention"),
    ("layer.0.layer_norm", "attention_norm"),
    ("layer.1.EncDecAttention", "cross"),
    ("layer.1.layer_norm", "cross_norm"),
    ("layer.2.layer_norm", "ffn_norm"),
    ("layer.2.DenseReluDense", "ffn"),
    ("q", "query"),
    ("k", "key"),
    ("v", "value"),
    ("o", "output"),
    ("wi_0", "gate"),
    ("wi_1", "up"),
    ("wo", "down"),
    ("final_layer_norm", "norm"),
)
# In an encoder the feed-forward comes second.
ENCODER_NAMES: Names = tuple((one.replace("layer.2", "layer.1"), own) for one, own in NAMES if "cross" not in own)


def _configure(raw: Fields, *, scaled: bool) -> DecoderConfig:
    hidden, heads, size = integer(raw, "d_model"), integer(raw, "num_heads"), integer(raw, "d_kv", 64)
    layers = integer(raw, "num_layers")
    gated, kind = _feed_forward(raw)
    blocks = DecoderConfig(
        vocab_size=integer(raw, "vocab_size"),
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=size,
        ffn_size=integer(raw, "d_ff"),
        max_positions=LONGEST,
        norm_eps=number(raw, "layer_norm_epsilon", 1e-6),
        rotary=None,
        relative=RelativeBias(
            num_buckets=integer(raw, "relative_attention_num_buckets", 32),
            max_distance=integer(raw, "relative_attention_max_distance", 128),
        ),
        attention=AttentionConfig(scale=1.0),
        ffn=FFNConfig(activation=ACTIVATIONS[kind], gated=gated),
    )
    return replace(
        blocks,
        num_layers=integer(raw, DECODER_LAYERS, layers),
        multipliers=Multipliers(logits=sqrt(hidden) if scaled else 1.0),
        tied_head=raw.get("tie_word_embeddings") is not False,
        cross=CrossConfig(source_size=hidden, max_source=integer(raw, "n_positions", 512)),
        encoder=EncoderConfig(blocks=blocks),
    )


def _feed_forward(raw: Fields) -> tuple[bool, str]:
    """Whether it has a gate, and the name of its activation. Raises ValueError for another one."""
    *gated, kind = str(raw.get("feed_forward_proj", "relu")).split("-")
    kind = "gelu_new" if gated and kind == "gelu" else kind
    if gated not in ([], ["gated"]) or kind not in ACTIVATIONS:
        raise ValueError(
            f"feed_forward_proj={raw['feed_forward_proj']!r} is not supported by the native decoder; supported: "
            f"{', '.join(ACTIVATIONS)}, each also as 'gated-...'"
        )
    return bool(gated), kind


def _read(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    stack, _, rest = name.partition(".")
    ours = "encoder." if stack == "encoder" else ""
    if stack in ("shared", "lm_head"):
        yield f"{'embed' if stack == 'shared' else 'head'}.{rest}", tensor
    elif rest == BIAS:
        yield f"{ours}relative.weight", tensor
    elif rest != "embed_tokens.weight" and "EncDecAttention.relative" not in rest:  # copies, and what is never read
        own = swap(ENCODER_NAMES if ours else NAMES, rest)
        yield ours + own.replace(".ffn.wi.", ".ffn.up."), tensor


def _write(state: dict[str, Tensor]) -> dict[str, Tensor]:
    gated = any(".ffn.gate." in name for name in state)
    stored: dict[str, Tensor] = {}
    for name, tensor in state.items():
        stack, own, names = "decoder", name, NAMES
        if name.startswith("encoder."):
            stack, own, names = "encoder", name.removeprefix("encoder."), ENCODER_NAMES
        if name in ("embed.weight", "head.weight"):
            stored["shared.weight" if name == "embed.weight" else "lm_head.weight"] = tensor
        elif own == "relative.weight":
            stored[f"{stack}.{BIAS}"] = tensor
        else:
            own = own if gated else own.replace(".ffn.up.", ".ffn.wi.")
            stored[f"{stack}.{swap(names, own, back=True)}"] = tensor
    return stored


def _t5(raw: Fields) -> DecoderConfig:
    require(raw, "is_decoder", False, False)
    given = raw.get("scale_decoder_outputs")
    return _configure(raw, scaled=raw.get("tie_word_embeddings") is not False if given is None else bool(given))


def _mt5(raw: Fields) -> DecoderConfig:
    return _configure(raw, scaled=False)


FAMILIES = {
    "t5": Family(_t5, _read, _write, DECODER_LAYERS),
    "mt5": Family(_mt5, _read, _write, DECODER_LAYERS),
}
