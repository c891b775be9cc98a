"""The batch of a training step, and the protocol of what provides it.

B rows, T inputs of a row, H hidden size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """Rows of T + 1 tokens: T inputs, and the successor of each. Made on the CPU."""

    tokens: Tensor  # [B, T + 1] int64
    learned: Tensor  # [B, T + 1] bool: tokens with a loss; padding and other speakers' turns have none
    segment: Tensor | None = None  # [B, T + 1] int64: document numbers, which do not attend to each other; None: one
    hidden: Mapping[int, Tensor] | None = None  # tap -> [B, T, H], precomputed; None: run the target

    def to(self, device: torch.device) -> "TrainBatch":
        """A copy on ``device``."""
        return TrainBatch(
            tokens=self.tokens.to(device, non_blocking=True),
            learned=self.learned.to(device, non_blocking=True),
            segment=None if self.segment is None else self.segment.to(device, non_blocking=True),
            hidden=None if self.hidden is None else {tap: states.to(device) for tap, states in self.hidden.items()},
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
