"""Phi-3: Llama with its matrices packed as ours are, and rotation of a part of each head."""

from dataclasses import replace

from paceline.models.families.base import Names, complete, renaming, require, window
from paceline.models.families.llama import NAMES as LLAMA_NAMES
from paceline.models.families.llama import shape
from paceline.models.native.config import DecoderConfig

NAMES: Names = (
    *LLAMA_NAMES,
    ("self_attn.qkv_proj", "attention.qkv"),
    ("mlp.gate_up_proj", "ffn.gate_up"),
)


def _configure(raw: dict[str, object]) -> DecoderConfig:
    require(raw, "layer_types", None, None)  # transformers' Phi-3 ignores them
    fields = complete(raw)
    return replace(shape(fields, partial=True), window=window(fields))


FAMILIES = {"phi3": renaming(_configure, NAMES, packed=True)}
