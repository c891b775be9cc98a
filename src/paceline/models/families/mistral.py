"""Mistral: Llama with a sliding window."""

from paceline.models.config import DecoderConfig
from paceline.models.families.base import complete, renaming, require
from paceline.models.families.llama import NAMES, shape


def _configure(raw: dict[str, object]) -> DecoderConfig:
    require(raw, "layer_types", None, None)  # transformers' Mistral ignores them: such models are of another family
    return shape(complete(raw))


FAMILIES = {"mistral": renaming(_configure, NAMES)}
