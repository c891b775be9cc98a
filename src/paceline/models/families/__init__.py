"""How each checkpoint family maps to the native decoder: its config and its tensor names. Reads no files.

A family is one entry in FAMILIES: ``configure`` reads config.json's fields, ``read`` maps a stored tensor to ours and
``write`` all of ours (by their parts, models/packing) to the stored ones. ``read`` never copies: what it yields is the
tensor itself or a view, a packed one where the checkpoint packs likewise.
"""

from paceline.models.families import (
    bart,
    gemma,
    gpt2,
    gpt_neox,
    granite,
    llama,
    mistral,
    olmo2,
    phi3,
    qwen,
    smollm3,
    t5,
    text_to_semantic,
    whisper,
)
from paceline.models.families.base import Family

__all__ = ["DECODERS", "ENCODER_DECODERS", "FAMILIES", "Family"]

DECODERS: dict[str, Family] = {
    **gpt2.FAMILIES,
    **llama.FAMILIES,
    **mistral.FAMILIES,
    **qwen.FAMILIES,
    **gpt_neox.FAMILIES,
    **olmo2.FAMILIES,
    **phi3.FAMILIES,
    **gemma.FAMILIES,
    **granite.FAMILIES,
    **smollm3.FAMILIES,
}
ENCODER_DECODERS: dict[str, Family] = {
    **t5.FAMILIES,
    **bart.FAMILIES,
    **whisper.FAMILIES,
    **text_to_semantic.FAMILIES,
}
FAMILIES: dict[str, Family] = {**DECODERS, **ENCODER_DECODERS}
