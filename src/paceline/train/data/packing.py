"""Documents to rows of T + 1 tokens: one behind the other, or each by itself. Knows nothing of files or order.

T inputs of a row, N tokens, D documents, H hidden size.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np
from torch import Tensor

from paceline.train.data.store import Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Tokens ``start`` to ``stop`` of a document."""

    document: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one row of a batch holds."""

    tokens: np.ndarray  # [T + 1] int64
    learned: np.ndarray  # [T + 1] bool
    segment: np.ndarray  # [T + 1] int64: which document of the row
    hidden: Mapping[int, Tensor] | None = None  # tap -> [T, H]


class Rows(Protocol):
    """Rows by number, the same whenever they are asked for."""

    @property
    def num_rows(self) -> int: ...

    @property
    def segmented(self) -> bool:
        """Whether a row may hold several documents that do not see each other."""
        ...

    def row(self, index: int) -> Row: ...


class Packing(ABC):
    """Which tokens a row holds, as spans of documents; rows that teach nothing are left out.

    Consecutive rows share one token, the last of one and the first of the next, so that each is predicted once.
    """

    def __init__(self, stored: Stored, *, length: int, segmented: bool) -> None:
        self.stored, self.length, self.segmented = stored, length, segmented
        self.starts = np.concatenate(([0], stored.ends[:-1])).astype(np.int64)  # [D]
        self._first = self._cut()
        self._kept = self._teaching()

    @property
    def num_rows(self) -> int:
        """Of those that teach something."""
        return len(self._first) if self._kept is None else len(self._kept)

    @property
    @abstractmethod
    def num_unused(self) -> int:
        """Tokens at the end that fill no row."""

    @abstractmethod
    def _cut(self) -> np.ndarray:
        """Where each row begins in the stored tokens, ascending."""

    @abstractmethod
    def _stop(self, first: int) -> int:
        """Where the row that begins at ``first`` ends; it may be shorter than a row, and is then padded."""

    def spans(self, index: int) -> list[Span]:
        """The documents of a row, in their order."""
        first = self._begin(index)
        stop = self._stop(first)
        number = int(np.searchsorted(self.stored.ends, first, side="right"))
        found: list[Span] = []
        while first < stop:
            start, end = int(self.starts[number]), min(stop, int(self.stored.ends[number]))
            found.append(Span(document=number, start=first - start, stop=end - start))
            first, number = end, number + 1
        return found

    def row(self, index: int) -> Row:
        """Padding has token 0, is not learned, and belongs to the document before it, which does not see it."""
        first = self._begin(index)
        size = self._stop(first) - first
        tokens, learned = np.zeros(self.length + 1, np.int64), np.zeros(self.length + 1, bool)
        segment = np.zeros(self.length + 1, np.int64)
        tokens[:size] = self.stored.tokens[first : first + size]
        learned[:size] = True if self.stored.learned is None else self.stored.learned[first : first + size]
        at = 0
        for number, span in enumerate(self.spans(index)):
            if self.segmented:
                segment[at:] = number
            if span.start == 0:
                learned[at] = False
            at += span.stop - span.start
        return Row(tokens=tokens, learned=learned, segment=segment)

    def _begin(self, index: int) -> int:
        return int(self._first[index if self._kept is None else self._kept[index]])

    def _teaching(self) -> np.ndarray | None:
        """Numbers of the rows of which some token after the first is learned; None: all."""
        learned = self.stored.learned
        if learned is None or not len(self._first):
            return None
        # A row's tokens end where the next one's begin, and a document's first token is never learned.
        edges = np.append(self._first + 1, self._stop(int(self._first[-1])))
        counts = np.add.reduceat(learned[: edges[-1]].view(np.uint8), edges[:-1], dtype=np.int64)
        return np.flatnonzero(counts)


@final
class Packed(Packing):
    """Documents one behind the other; what fills no whole row at the end is left out."""

    @property
    def num_unused(self) -> int:
        tokens = len(self.stored.tokens)
        return tokens if not len(self._first) else tokens - int(self._first[-1]) - self.length - 1

    def _cut(self) -> np.ndarray:
        return np.arange(max(0, (len(self.stored.tokens) - 1) // self.length), dtype=np.int64) * self.length

    def _stop(self, first: int) -> int:
        return first + self.length + 1


@final
class Alone(Packing):
    """A document a row, padded; long ones are cut into several."""

    @property
    def num_unused(self) -> int:
        return int((self.stored.ends - self.starts == 1).sum())

    def _cut(self) -> np.ndarray:
        pieces = -(-(self.stored.ends - self.starts - 1) // self.length)  # [D]: none of a document of one token
        before = np.cumsum(pieces) - pieces
        number = np.repeat(np.arange(len(pieces)), pieces)
        return self.starts[number] + (np.arange(len(number)) - before[number]) * self.length

    def _stop(self, first: int) -> int:
        number = int(np.searchsorted(self.stored.ends, first, side="right"))
        return min(first + self.length + 1, int(self.stored.ends[number]))


PACKINGS: dict[str, type[Packing]] = {"packed": Packed, "documents": Alone}
