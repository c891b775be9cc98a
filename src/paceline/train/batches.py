"""What one step of training reads. Knows nothing of where it comes from or what is done with it.

B rows, T inputs of a row, H hidden size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """Rows of T + 1 tokens: T that are read, and each one's successor. All on the CPU."""

    tokens: Tensor  # [B, T + 1] int64
    learned: Tensor  # [B, T + 1] bool: tokens that a loss counts; padding and other people's turns are none
    segment: Tensor | None = None  # [B, T + 1] int64: of one text where equal, which sees no others; None: one
    hidden: Mapping[int, Tensor] | None = None  # tap -> [B, T, H], where it was computed before; None: ask the target


class Batches(Protocol):
    """The batch of every step, a function of the step alone: a run that goes on needs no state, on any world size."""

    @property
    def rows(self) -> int:
        """Of a whole batch, over all processes."""
        ...

    def batch(self, step: int, rows: range) -> TrainBatch:
        """Those ``rows`` of the batch of ``step``. Raises ValueError beyond the last step that there is one for."""
        ...
