"""BART, mBART, Marian and Pegasus, and what encoder-decoders of their layout share."""

from collections.abc import Iterator
from dataclasses import replace
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.models.families.base import COPY, Family, Fields, Names, integer, require, swap
from paceline.models.families.base import activation as activation
from paceline.models.native.config import (
    Arrangement,
    AttentionConfig,
    CrossConfig,
    DecoderConfig,
    EncoderConfig,
    FFNConfig,
    Multipliers,
)

DECODER_LAYERS = "decoder_layers"
OFFSET = 2  # rows of a table of positions before that of position 0
NAMES: Names = (
    ("embed_positions", "position"),
    ("layernorm_embedding", "blocks.0.embedding_norm"),
    ("layers", "blocks"),
    ("self_attn_layer_norm", "attention_norm"),
    ("self_attn", "attention"),
    ("encoder_attn_layer_norm", "cross_norm"),
    ("encoder_attn", "cross"),
    ("final_layer_norm", "ffn_norm"),
    ("q_proj", "query"),
    ("k_proj", "key"),
    ("v_proj", "value"),
    ("out_proj", "output"),
    ("fc1", "ffn.up"),
    ("fc2", "ffn.down"),
    ("layer_norm", "norm"),
)


def shape(raw: Fields, *, most: int, source: int, arrangement: Arrangement, final_norm: bool) -> DecoderConfig:
    """A decoder and encoder with the fields of BART's config, of ``most`` tokens and ``source`` states at most.

    ``final_norm``: the stacks end in a norm. Raises KeyError and ValueError as ``integer`` does.
    """
    hidden = integer(raw, "d_model")
    function = activation(raw, "activation_function")
    decoder = DecoderConfig(
        vocab_size=integer(raw, "vocab_size"),
        hidden_size=hidden,
        num_layers=integer(raw, DECODER_LAYERS),
        num_heads=(heads := integer(raw, "decoder_attention_heads")),
        num_kv_heads=heads,
        head_dim=hidden // heads,
        ffn_size=integer(raw, "decoder_ffn_dim"),
        max_positions=most,
        norm_eps=1e-5,
        rotary=None,
        norm=nn.LayerNorm,
        attention=AttentionConfig(bias=True, output_bias=True),
        ffn=FFNConfig(activation=function, gated=False, bias=True),
        arrangement=arrangement,
        multipliers=Multipliers(embedding=sqrt(hidden) if raw.get("scale_embedding", False) else 1.0),
        tied_head=raw.get("tie_word_embeddings") is not False,
        final_norm=final_norm,
    )
    heads = integer(raw, "encoder_attention_heads")
    encoder = replace(
        decoder,
        num_layers=integer(raw, "encoder_layers"),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        ffn_size=integer(raw, "encoder_ffn_dim"),
        max_positions=source,
    )
    cross = CrossConfig(source_size=hidden, max_source=source, bias=True, output_bias=True)
    return replace(decoder, cross=cross, encoder=EncoderConfig(blocks=encoder))


def read(name: str, tensor: Tensor, *, offset: int = OFFSET) -> Iterator[tuple[str, Tensor]]:
    """Ours of a tensor in BART's layout, whose tables of positions begin ``offset`` rows before that of position 0."""
    if name == "final_logits_bias":
        yield "logits_bias", tensor[0]
    elif name == "model.shared.weight":
        yield "embed.weight", tensor
    elif name == "lm_head.weight":
        yield "head.weight", tensor
    else:
        stack, _, rest = name.removeprefix("model.").partition(".")
        own = COPY if rest == "embed_tokens.weight" else swap(NAMES, rest)
        table = own == "position.weight"
        yield f"{'encoder.' if stack == 'encoder' else ''}{own}", tensor[offset:] if table else tensor


def write(state: dict[str, Tensor], *, offset: int = OFFSET) -> dict[str, Tensor]:
    """The reverse of ``read``: what was before position 0, which nothing reads, is zero."""
    stored: dict[str, Tensor] = {}
    for name, tensor in state.items():
        stack, own = ("encoder", name.removeprefix("encoder.")) if name.startswith("encoder.") else ("decoder", name)
        if name == "logits_bias":
            stored["final_logits_bias"] = tensor[None]
        elif name in ("embed.weight", "head.weight"):
            stored["model.shared.weight" if name == "embed.weight" else "lm_head.weight"] = tensor
        else:
            whole = F.pad(tensor, (0, 0, offset, 0)) if own == "position.weight" else tensor
            stored[f"model.{stack}.{swap(NAMES, own, back=True)}"] = whole
    return stored


def _configure(raw: Fields, *, arrangement: Arrangement, embedding_norm: bool, final_norm: bool) -> DecoderConfig:
    most = integer(raw, "max_position_embeddings")
    config = shape(raw, most=most, source=most, arrangement=arrangement, final_norm=final_norm)
    assert config.encoder is not None
    encoder = replace(config.encoder, blocks=replace(config.encoder.blocks, embedding_norm=embedding_norm))
    return replace(config, embedding_norm=embedding_norm, logits_bias=True, encoder=encoder)


def _bart(raw: Fields) -> DecoderConfig:
    return _configure(raw, arrangement=Arrangement.NORM_OF_SUM, embedding_norm=True, final_norm=False)


def _mbart(raw: Fields) -> DecoderConfig:
    return _configure(raw, arrangement=Arrangement.NORM_BEFORE, embedding_norm=True, final_norm=True)


def _marian(raw: Fields) -> DecoderConfig:
    require(raw, "share_encoder_decoder_embeddings", True, True)
    return _configure(raw, arrangement=Arrangement.NORM_OF_SUM, embedding_norm=False, final_norm=False)


def _pegasus(raw: Fields) -> DecoderConfig:
    return _configure(raw, arrangement=Arrangement.NORM_BEFORE, embedding_norm=False, final_norm=True)


def _read_exact(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield from read(name, tensor, offset=0)


def _write_exact(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return write(state, offset=0)


def _no_bias(config: DecoderConfig) -> dict[str, Tensor]:
    return {"logits_bias": torch.zeros(config.vocab_size)}


def _sinusoids(config: DecoderConfig) -> dict[str, Tensor]:
    """Tables of positions too, which follow from their sizes: sines in the first half of the numbers, then cosines."""
    size, rows = config.hidden_size, torch.arange(config.max_positions, dtype=torch.float64)
    angles = rows[:, None] / 10000 ** (torch.arange(0, size, 2, dtype=torch.float64) / size)
    table = torch.cat((angles.sin(), angles[:, : size // 2].cos()), dim=1).float()
    return {**_no_bias(config), "position.weight": table, "encoder.position.weight": table.clone()}


FAMILIES = {
    "bart": Family(_bart, read, write, DECODER_LAYERS, _no_bias),
    "mbart": Family(_mbart, read, write, DECODER_LAYERS, _no_bias),
    "marian": Family(_marian, _read_exact, _write_exact, DECODER_LAYERS, _sinusoids),
    "pegasus": Family(_pegasus, _read_exact, _write_exact, DECODER_LAYERS, _sinusoids),
}
