"""A smaller decoder for a target's encoder, of copies of some of the target's decoder layers (distil-whisper,
2311.00430).
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from paceline.models.loading import assemble, find_family
from paceline.models.native.encoder_decoder import EncoderDecoderLM

ENCODER, EMBEDDING_NORM = "encoder.", "embedding_norm."


def resolve_layers(layers: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """``layers`` counted from the first; negative ones count from the last, which is -1.

    Raises ValueError for none, for one that there is not, and unless they ascend.
    """
    if not layers:
        raise ValueError("no layers: give at least one, such as [0, -1]")
    outside = [layer for layer in layers if not -num_layers <= layer < num_layers]
    if outside:
        raise ValueError(
            f"{list(layers)}: there is no layer {outside[0]}, the decoder has {num_layers}: give numbers from 0 to "
            f"{num_layers - 1}, or from -1, the last, to {-num_layers}"
        )
    found = tuple(layer % num_layers for layer in layers)
    for before, after in pairwise(found):
        if before >= after:
            what = "is there twice" if before == after else f"comes after layer {before}"
            raise ValueError(f"{list(layers)}: layer {after} {what}: give each once, in ascending order")
    return found


@torch.no_grad()
def copy_layers(lm: EncoderDecoderLM, layers: Sequence[int]) -> EncoderDecoderLM:
    """A decoder of copies of ``layers`` of ``lm`` and of all that surrounds them, in float32; it reads the states of
    the encoder of ``lm``. Raises ValueError as ``resolve_layers``.
    """
    chosen = resolve_layers(layers, lm.num_layers)
    state = {name: tensor for name, tensor in lm.state_dict().items() if not name.startswith(("blocks.", ENCODER))}
    for at, layer in enumerate(chosen):
        for name, tensor in lm.blocks[layer].state_dict().items():
            if not name.startswith(EMBEDDING_NORM):
                state[f"blocks.{at}.{name}"] = tensor
    for name, tensor in lm.blocks[0].state_dict().items():
        if name.startswith(EMBEDDING_NORM):  # of the embeddings, whatever layer comes after it
            state[f"blocks.0.{name}"] = tensor
    config = replace(lm.config, num_layers=len(chosen), encoder=None)
    copied = {name: tensor.float().clone() for name, tensor in state.items()}
    draft = assemble(config, copied, device=lm.device)
    assert isinstance(draft, EncoderDecoderLM)
    draft.share_encoder(lm)
    return draft


def with_encoder(draft: EncoderDecoderLM, lm: EncoderDecoderLM) -> EncoderDecoderLM:
    """``draft`` and the encoder of ``lm`` as one model, over the same tensors."""
    state = {**draft.state_dict(), **_of_encoder(lm)}
    whole = assemble(replace(draft.config, encoder=lm.config.encoder), state, device=draft.device)
    assert isinstance(whole, EncoderDecoderLM)
    return whole


def smaller_config(raw: dict[str, object], num_layers: int) -> dict[str, object]:
    """The config.json ``raw`` of an encoder-decoder, with ``num_layers`` decoder layers."""
    field = find_family(raw, "config.json").decoder_layers
    assert field is not None
    return {**raw, field: num_layers}


def _of_encoder(lm: EncoderDecoderLM) -> dict[str, Tensor]:
    """The encoder's tensors by their names in the whole model, and the embedding where it reads tokens."""
    names = (ENCODER, "embed.") if lm.encodes_tokens else (ENCODER,)
    return {name: tensor for name, tensor in lm.state_dict().items() if name.startswith(names)}
