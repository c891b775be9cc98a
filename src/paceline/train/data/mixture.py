"""Rows of several sources as batches, each a function of its step. Knows nothing of files or tokens.

B rows, T inputs of a row.
"""

from collections.abc import Sequence
from typing import final

import numpy as np
import torch

from paceline.train.batches import TrainBatch
from paceline.train.data.order import Shuffle
from paceline.train.data.packing import Row, Rows

PERIOD = 1024  # rows in which every source has its share


@final
class Pool:
    """Several Rows as one, one behind the other."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self._parts = parts
        self._ends = np.cumsum([part.num_rows for part in parts])

    @property
    def num_rows(self) -> int:
        """Of all."""
        return int(self._ends[-1])

    @property
    def segmented(self) -> bool:
        """Whether any is."""
        return any(part.segmented for part in self._parts)

    def row(self, index: int) -> Row:
        """The row of the part that ``index`` falls to."""
        number = int(np.searchsorted(self._ends, index, side="right"))
        return self._parts[number].row(index - (int(self._ends[number - 1]) if number else 0))


@final
class RowBatches:
    """Batches (train/batches) of several sources, each read again and again in an order of its own for every epoch.

    Row r of step s is the (s * rows + r)-th that is read, whoever asks for it. In every ``PERIOD`` of them each source
    has its share, to the nearest row, and at least one.
    """

    def __init__(self, sources: Sequence[tuple[Rows, float]], *, rows: int, seed: int) -> None:
        self._sources = [source for source, _ in sources]
        self._rows, self._seed = rows, seed
        self._quotas = _quotas([share for _, share in sources])
        self._ends = np.cumsum(self._quotas)
        self.segmented = any(source.segmented for source in self._sources)

    @property
    def rows(self) -> int:
        """Of a whole batch."""
        return self._rows

    @property
    def num_rows(self) -> int:
        """Of all sources."""
        return sum(source.num_rows for source in self._sources)

    def batch(self, step: int, rows: range) -> TrainBatch:
        """Those ``rows`` of this step's batch: tokens [B, T + 1]."""
        found = [self.row(step * self._rows + row) for row in rows]
        taps = found[0].hidden.keys() if found and found[0].hidden is not None else None
        hidden = None
        if taps is not None:
            hidden = {tap: torch.stack([row.hidden[tap] for row in found if row.hidden is not None]) for tap in taps}
        return TrainBatch(
            tokens=torch.from_numpy(np.stack([row.tokens for row in found])),
            learned=torch.from_numpy(np.stack([row.learned for row in found])),
            segment=torch.from_numpy(np.stack([row.segment for row in found])) if self.segmented else None,
            hidden=hidden,
        )

    def row(self, number: int) -> Row:
        """The ``number``-th row that is read."""
        which, index = self.place(number)
        return self._sources[which].row(index)

    def place(self, number: int) -> tuple[int, int]:
        """Which source the ``number``-th row comes from, and which of its rows it is."""
        period, slot = divmod(number, PERIOD)
        if len(self._sources) > 1:
            slot = Shuffle(size=PERIOD, seed=self._seed, epoch=period)[slot]
        which = int(np.searchsorted(self._ends, slot, side="right"))
        quota = self._quotas[which]
        count = period * quota + slot - int(self._ends[which] - quota)  # rows of this source before it
        size = self._sources[which].num_rows
        epoch, index = divmod(count, size)
        return which, Shuffle(size=size, seed=self._seed + which + 1, epoch=epoch)[index]


def _quotas(shares: Sequence[float]) -> list[int]:
    """Whole numbers of at least 1 that add up to PERIOD, each as near to its share as may be."""
    exact = [PERIOD * share / sum(shares) for share in shares]
    quotas = [max(1, int(value)) for value in exact]
    while sum(quotas) != PERIOD:
        sign = 1 if sum(quotas) < PERIOD else -1
        furthest = max(range(len(quotas)), key=lambda index: sign * (exact[index] - quotas[index]))
        quotas[furthest] += sign
    return quotas
