"""Gemma: embeddings times the root of the hidden size, norms by one plus their weight, a gate with GELU."""

from dataclasses import replace

from paceline.models.families.base import complete, renaming
from paceline.models.families.llama import NAMES, shape
from paceline.models.native.config import AttentionConfig, DecoderConfig, Multipliers
from paceline.models.native.layers import OffsetRMSNorm, gelu_tanh


def _configure(raw: dict[str, object]) -> DecoderConfig:
    fields = complete(raw)
    if fields["use_bidirectional_attention"]:
        raise ValueError("use_bidirectional_attention=True is not supported by the native decoder, only False")
    plain, bias = shape(fields), bool(fields["attention_bias"])
    return replace(
        plain,
        norm=OffsetRMSNorm,
        attention=AttentionConfig(bias=bias, output_bias=bias),
        # The first files say "gelu" and mean the approximation; transformers knows it from 5.18 on.
        ffn=replace(plain.ffn, activation=gelu_tanh) if fields["hidden_act"] == "gelu" else plain.ffn,
        multipliers=Multipliers(embedding=plain.hidden_size**0.5, round_embedding=True),
    )


FAMILIES = {"gemma": renaming(_configure, NAMES)}
