"""Batches of rows from several sources, as a function of the step.

B rows, T inputs of a row.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Generic, TypeVar, final

import numpy as np
import torch

from paceline.train.batches import SourceBatch, TrainBatch
from paceline.train.data.order import Shuffle
from paceline.train.data.packing import Row, Rows

RowsT = TypeVar("RowsT", bound=Rows)
PERIOD = 1024  # rows over which every source has its share


@final
class ConcatenatedRows(Generic[RowsT]):
    """Several Rows as one."""

    def __init__(self, parts: Sequence[RowsT]) -> None:
        self._parts = parts
        self._starts = np.cumsum([0, *(part.num_rows for part in parts)])
        self.num_rows = int(self._starts[-1])
        self.segmented = any(part.segmented for part in parts)

    def locate(self, index: int) -> tuple[RowsT, int]:
        """The part that has the row ``index``, and the row's index in it."""
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self._parts[number], index - int(self._starts[number])

    def row(self, index: int) -> Row:
        """The row ``index`` of the concatenation."""
        part, at = self.locate(index)
        return part.row(at)


@final
class RowBatches:
    """Batches of several sources, each read repeatedly in another order for every epoch.

    Row r of step s is the (s * rows + r)-th in the order, for any reader. In every ``PERIOD`` of them each source has
    its share, to the nearest row, and at least one.
    """

    def __init__(self, sources: Sequence[tuple[Rows, float]], *, rows: int, seed: int) -> None:
        self._sources = [source for source, _ in sources]
        self.rows, self._seed = rows, seed
        self._quotas = _quotas([share for _, share in sources])
        self._ends = np.cumsum(self._quotas)
        self.segmented = any(source.segmented for source in self._sources)
        self._starts = list(accumulate((source.num_rows for source in self._sources), initial=0))
        self.num_rows = self._starts[-1]

    def batch(self, step: int, rows: range) -> TrainBatch:
        """Those ``rows`` of the step's batch: tokens [B, T + 1]."""
        return self.gather([step * self.rows + row for row in rows])

    def gather(self, numbers: Sequence[int]) -> TrainBatch:
        """The rows of those ``numbers`` in the order."""
        selected = [self.row(number) for number in numbers]
        hidden = None
        if selected and selected[0].hidden is not None:
            taps = selected[0].hidden.keys()
            hidden = {tap: torch.stack([row.hidden[tap] for row in selected if row.hidden is not None]) for tap in taps}
        sources = [row.source for row in selected if row.source is not None]
        return TrainBatch(
            tokens=torch.from_numpy(np.stack([row.tokens for row in selected])),
            learned=torch.from_numpy(np.stack([row.learned for row in selected])),
            segment=torch.from_numpy(np.stack([row.segment for row in selected])) if self.segmented else None,
            hidden=hidden,
            source=SourceBatch.of(sources) if sources else None,
        )

    def row(self, number: int) -> Row:
        """The ``number``-th row in the order."""
        which, index = self.locate(number)
        return self._sources[which].row(index)

    def index(self, number: int) -> int:
        """Which of all ``num_rows`` rows the ``number``-th is: the same in every epoch, whatever the seed."""
        which, index = self.locate(number)
        return self._starts[which] + index

    def locate(self, number: int) -> tuple[int, int]:
        """The source of the ``number``-th row, and the row's index in it."""
        period, slot = divmod(number, PERIOD)
        if len(self._sources) > 1:
            slot = Shuffle(size=PERIOD, seed=self._seed, epoch=period)[slot]
        which = int(np.searchsorted(self._ends, slot, side="right"))
        quota = self._quotas[which]
        count = period * quota + slot - int(self._ends[which] - quota)  # earlier rows of this source
        size = self._sources[which].num_rows
        epoch, index = divmod(count, size)
        return which, Shuffle(size=size, seed=self._seed + which + 1, epoch=epoch)[index]


def _quotas(shares: Sequence[float]) -> list[int]:
    """Integers of at least 1 that sum to PERIOD, each as close to its share as possible."""
    exact = [PERIOD * share / sum(shares) for share in shares]
    quotas = [max(1, int(value)) for value in exact]
    while sum(quotas) != PERIOD:
        sign = 1 if sum(quotas) < PERIOD else -1
        furthest = max(range(len(quotas)), key=lambda index: sign * (exact[index] - quotas[index]))
        quotas[furthest] += sign
    return quotas
