"""Granite: Llama with factors for embeddings, scores, what a block adds, and logits."""

from dataclasses import replace

from paceline.models.families.base import complete, number, renaming
from paceline.models.families.llama import NAMES, shape
from paceline.models.native.config import AttentionConfig, DecoderConfig, Multipliers


def _configure(raw: dict[str, object]) -> DecoderConfig:
    fields = complete(raw)
    bias = bool(fields["attention_bias"])
    return replace(
        shape(fields),
        attention=AttentionConfig(bias=bias, output_bias=bias, scale=number(fields, "attention_multiplier", 1.0)),
        multipliers=Multipliers(
            embedding=number(fields, "embedding_multiplier", 1.0),
            residual=number(fields, "residual_multiplier", 1.0),
            logits=number(fields, "logits_scaling", 1.0),
        ),
    )


FAMILIES = {"granite": renaming(_configure, NAMES)}
