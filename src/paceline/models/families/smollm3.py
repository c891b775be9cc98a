"""SmolLM3: Llama some of whose layers see no positions."""

from dataclasses import replace

from paceline.models.families.base import complete, renaming, window
from paceline.models.families.llama import NAMES, shape
from paceline.models.native.config import AttentionConfig, DecoderConfig


def _configure(raw: dict[str, object]) -> DecoderConfig:
    fields = complete(raw)
    plain, bias, rotated = shape(fields), bool(fields["attention_bias"]), fields["no_rope_layers"]
    if not isinstance(rotated, list) or len(rotated) < plain.num_layers:
        raise ValueError(f"no_rope_layers={rotated!r}: one number for each of {plain.num_layers} layers is needed")
    unrotated = frozenset(layer for layer in range(plain.num_layers) if not rotated[layer])
    attention = AttentionConfig(bias=bias, output_bias=bias, unrotated=unrotated)
    return replace(plain, attention=attention, window=window(fields))


FAMILIES = {"smollm3": renaming(_configure, NAMES)}
