"""Mistral: Llama with a sliding window."""

from dataclasses import replace

from paceline.models.families.base import complete, renaming, require, window
from paceline.models.families.llama import NAMES, shape
from paceline.models.native.config import DecoderConfig


def _configure(raw: dict[str, object]) -> DecoderConfig:
    require(raw, "layer_types", None, None)  # transformers' Mistral ignores them: such models are of another family
    fields = complete(raw)
    return replace(shape(fields), window=window(fields))


FAMILIES = {"mistral": renaming(_configure, NAMES)}
