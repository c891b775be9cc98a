"""The batch of a training step, and the protocol of what provides it.

B rows, T inputs of a row, H hidden size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBatch:
    """What an encoder reads for each row, padded at its end."""

    inputs: Tensor  # [B, S] int64 token ids, or [B, W, F] frames of W numbers
    length: Tensor  # [B] int64: states that the encoder makes of a row without its padding

    @staticmethod
    def of(sources: Sequence[Tensor]) -> "SourceBatch":
        """The sources of a batch's rows: token ids [S], or frames [W, F], of which all are read."""
        if sources[0].dim() == 1:
            length = torch.tensor([len(source) for source in sources])
            return SourceBatch(inputs=pad_sequence(list(sources), batch_first=True), length=length)
        frames = torch.stack(list(sources))
        return SourceBatch(inputs=frames, length=torch.full((len(frames),), (frames.shape[-1] + 1) // 2))

    def to(self, device: torch.device) -> "SourceBatch":
        """A copy on ``device``."""
        return SourceBatch(
            inputs=self.inputs.to(device, non_blocking=True), length=self.length.to(device, non_blocking=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """Rows of T + 1 tokens: T inputs, and the successor of each. Made on the CPU."""

    tokens: Tensor  # [B, T + 1] int64
    learned: Tensor  # [B, T + 1] bool: tokens with a loss; padding and other speakers' turns have none
    segment: Tensor | None = None  # [B, T + 1] int64: document numbers, which do not attend to each other; None: one
    hidden: Mapping[int, Tensor] | None = None  # tap -> [B, T, H], precomputed; None: run the target
    source: SourceBatch | None = None  # of an encoder-decoder, whose output the tokens are

    def to(self, device: torch.device) -> "TrainBatch":
        """A copy on ``device``."""
        return TrainBatch(
            tokens=self.tokens.to(device, non_blocking=True),
            learned=self.learned.to(device, non_blocking=True),
            segment=None if self.segment is None else self.segment.to(device, non_blocking=True),
            hidden=None if self.hidden is None else {tap: states.to(device) for tap, states in self.hidden.items()},
            source=None if self.source is None else self.source.to(device),
        )


class Batches(Protocol):
    """The batch of every step, as a function of the step: resuming needs no state, with any number of processes."""

    @property
    def rows(self) -> int:
        """Rows of a whole batch, over all processes."""
        ...

    def batch(self, step: int, rows: range) -> TrainBatch:
        """Those ``rows`` of the batch of ``step``. Raises ValueError beyond the last step."""
        ...
