"""Packs documents into rows of T + 1 tokens: concatenated, or one document per row.

T inputs of a row, N tokens, D documents, H hidden size.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np
from torch import Tensor

from paceline.train.data.store import TokenisedSplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Tokens ``start`` to ``stop`` of a document."""

    document: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a batch."""

    tokens: np.ndarray  # [T + 1] int64
    learned: np.ndarray  # [T + 1] bool
    segment: np.ndarray  # [T + 1] int64: number of the document in the row
    hidden: Mapping[int, Tensor] | None = None  # tap -> [T, H]
    source: Tensor | None = None  # [S] int64 or [W, F]: what an encoder reads


class Rows(Protocol):
    """Rows by index."""

    @property
    def num_rows(self) -> int: ...

    @property
    def segmented(self) -> bool:
        """Whether a row may hold several documents that do not attend to each other."""
        ...

    def row(self, index: int) -> Row: ...


class Packing(ABC):
    """Which tokens are in which row, as spans of documents. Rows without learned tokens are left out.

    Consecutive rows share one token, the last of one and the first of the next, so that each is predicted once.
    """

    def __init__(self, split: TokenisedSplit, *, length: int, segmented: bool) -> None:
        self.split, self.length, self.segmented = split, length, segmented
        self.starts = np.concatenate(([0], split.ends[:-1])).astype(np.int64)  # [D]
        self._first = self._row_starts()
        self._learned_rows = self._rows_with_learned()

    @property
    def num_rows(self) -> int:
        """Number of rows with learned tokens."""
        return len(self._first) if self._learned_rows is None else len(self._learned_rows)

    @property
    @abstractmethod
    def num_unused(self) -> int:
        """Tokens that fill no row."""

    @abstractmethod
    def _row_starts(self) -> np.ndarray:
        """Index of each row's first token, ascending."""

    @abstractmethod
    def _stop(self, first: int) -> int:
        """The end of the row that starts at ``first``; a shorter row is padded."""

    def spans(self, index: int) -> list[Span]:
        """The documents of a row, in order."""
        first = self._start(index)
        stop = self._stop(first)
        number = int(np.searchsorted(self.split.ends, first, side="right"))
        spans: list[Span] = []
        while first < stop:
            start, end = int(self.starts[number]), min(stop, int(self.split.ends[number]))
            spans.append(Span(document=number, start=first - start, stop=end - start))
            first, number = end, number + 1
        return spans

    def row(self, index: int) -> Row:
        """A row. Padding has token 0, is not learned, and is in the segment of the document before it."""
        first = self._start(index)
        size = self._stop(first) - first
        tokens, learned = np.zeros(self.length + 1, np.int64), np.zeros(self.length + 1, bool)
        segment = np.zeros(self.length + 1, np.int64)
        tokens[:size] = self.split.tokens[first : first + size]
        learned[:size] = True if self.split.learned is None else self.split.learned[first : first + size]
        at = 0
        for number, span in enumerate(self.spans(index)):
            if self.segmented:
                segment[at:] = number
            if span.start == 0:
                learned[at] = False
            at += span.stop - span.start
        return Row(tokens=tokens, learned=learned, segment=segment)

    def prompt(self, index: int, length: int) -> np.ndarray | None:
        """A prefix [length] of a row's first document, before its first learned token if it can be; None: too short."""
        row, span = self.row(index), self.spans(index)[0]
        stop, size = length, span.stop - span.start
        if self.split.learned is not None and row.learned[:size].any():
            stop = max(length, int(np.argmax(row.learned)))
        return row.tokens[stop - length : stop] if stop < size else None  # the document goes on after the prompt

    def _start(self, index: int) -> int:
        return int(self._first[index if self._learned_rows is None else self._learned_rows[index]])

    def _rows_with_learned(self) -> np.ndarray | None:
        """Indices of the rows in which a token after the first is learned; None: all."""
        learned = self.split.learned
        if learned is None or not len(self._first):
            return None
        # A row ends where the next begins, and the first token of a document is never learned.
        edges = np.append(self._first + 1, self._stop(int(self._first[-1])))
        counts = np.add.reduceat(learned[: edges[-1]].view(np.uint8), edges[:-1], dtype=np.int64)
        return np.flatnonzero(counts)


@final
class ConcatenatedPacking(Packing):
    """Documents concatenated; a remainder that fills no whole row is left out."""

    @property
    def num_unused(self) -> int:
        tokens = len(self.split.tokens)
        return tokens if not len(self._first) else tokens - int(self._first[-1]) - self.length - 1

    def _row_starts(self) -> np.ndarray:
        return np.arange(max(0, (len(self.split.tokens) - 1) // self.length), dtype=np.int64) * self.length

    def _stop(self, first: int) -> int:
        return first + self.length + 1


@final
class DocumentPacking(Packing):
    """One document per row, padded; long documents are split into several rows."""

    @property
    def num_unused(self) -> int:
        return int((self.split.ends - self.starts == 1).sum())

    def _row_starts(self) -> np.ndarray:
        num_rows = -(-(self.split.ends - self.starts - 1) // self.length)  # [D]: 0 for a document of one token
        before = np.cumsum(num_rows) - num_rows
        number = np.repeat(np.arange(len(num_rows)), num_rows)
        return self.starts[number] + (np.arange(len(number)) - before[number]) * self.length

    def _stop(self, first: int) -> int:
        number = int(np.searchsorted(self.split.ends, first, side="right"))
        return min(first + self.length + 1, int(self.split.ends[number]))


PACKINGS: dict[str, type[Packing]] = {"packed": ConcatenatedPacking, "documents": DocumentPacking}
