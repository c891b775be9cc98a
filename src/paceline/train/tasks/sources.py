"""What an encoder makes of the sources of a batch, and sources that are left out.

B rows, X states, H hidden size of the encoder.
"""

import dataclasses

import torch
from torch import Tensor

from paceline.models.native.attention import Source
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.encoder_decoder import EncoderDecoderLM
from paceline.train.batches import SourceBatch, TrainBatch
from paceline.train.tasks.base import StepRandomness


def without_sources(batch: TrainBatch, randomness: StepRandomness, share: float) -> TrainBatch:
    """``batch`` in which rows, each with the probability ``share``, have an empty source: they learn what guidance
    leads away from (2207.12598).
    """
    if batch.source is None or not share:
        return batch
    stream = randomness.for_sources()
    drawn = torch.stack([torch.rand((), generator=stream.generator(row)) for row in range(len(batch.tokens))])
    length = batch.source.length
    kept = torch.where(drawn.to(length.device) < share, 0, length)
    return dataclasses.replace(batch, source=SourceBatch(inputs=batch.source.inputs, length=kept))


def encoded(model: DecoderLM, batch: TrainBatch) -> Tensor | None:
    """What the encoder of ``model`` makes of the sources of ``batch`` [B, X, H]; None where it has none."""
    if batch.source is None:
        return None
    assert isinstance(model, EncoderDecoderLM)
    return model.encode_inputs(batch.source.inputs, batch.source.length)


def source_of(model: DecoderLM, batch: TrainBatch, states: Tensor | None) -> Source | None:
    """What the decoder of ``model`` reads of ``states`` [B, X, H]; differentiable."""
    if states is None or batch.source is None:
        return None
    assert isinstance(model, EncoderDecoderLM)
    return model.source_of(states.to(model.dtype), batch.source.length)
