"""Draft models whose encoder is the target's: they read the target's states in place of encoding a second time."""

from copy import copy
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from paceline.models.base import LM
from paceline.models.native.encoder_decoder import EncoderDecoderLM


def reading_from(draft: LM, target: LM) -> LM:
    """``draft`` over the same decoder, reading the states of the encoder of ``target``, where both encoders are equal;
    else ``draft`` itself.
    """
    if not isinstance(draft, EncoderDecoderLM) or not isinstance(target, EncoderDecoderLM):
        return draft
    if draft.encoder is None or draft is target or not same_encoder(draft, target.reads_from):
        return draft
    found = copy(draft)
    # The one that was given keeps its encoder, for whoever else reads with it.
    found._modules = {**draft._modules, "encoder": None}
    found.config = replace(draft.config, encoder=None)
    found.share_encoder(target)
    return found


def same_encoder(one: EncoderDecoderLM, other: EncoderDecoderLM) -> bool:
    """Whether both encoders give the same states for every input: the same layout, and bitwise the same weights in the
    same precision, of the embedding too where they read tokens. Sizes are compared first, and then weights until some
    differ.
    """
    if one.encoder is None or other.encoder is None or one.config.encoder != other.config.encoder:
        return False
    if (one.device, one.dtype, one.embedding_factor) != (other.device, other.dtype, other.embedding_factor):
        return False
    own, theirs = _weights(one), _weights(other)
    if {name: (part.shape, part.dtype) for name, part in own.items()} != {
        name: (part.shape, part.dtype) for name, part in theirs.items()
    }:
        return False
    return all(torch.equal(part, theirs[name]) for name, part in own.items())


def _weights(lm: EncoderDecoderLM) -> dict[str, Tensor]:
    """What the encoder of ``lm`` computes with, as it is in memory, where packed matrices stay packed."""
    assert lm.encoder is not None
    found = {f"encoder.{name}": part for name, part in chain(lm.encoder.named_parameters(), lm.encoder.named_buffers())}
    if lm.encodes_tokens:
        found |= {f"embed.{name}": part for name, part in lm.embed.named_parameters()}
    return found
