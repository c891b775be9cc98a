"""The rows' sequences as a draft model reads them, in its own token ids.

B rows, T tokens of the target, V the target's vocabulary, P draft ids of all spellings, n slots.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


class DraftSequence(ABC):
    """The draft's tokens of some rows. Nothing is read by the host."""

    @abstractmethod
    def length(self, known: Tensor) -> Tensor:
        """How many draft tokens [B] the first ``known`` [B] tokens of each row make."""

    @abstractmethod
    def at(self, slots: Tensor) -> Tensor:
        """The draft tokens at ``slots`` [B, n] or [n] of every row [B, n]; any beyond the row's end."""


@final
class OneToOne(DraftSequence):
    """Each of the target's ``tokens`` [B, T] is one draft token, by ``draft_ids``."""

    def __init__(self, tokens: Tensor, draft_ids: Callable[[Tensor], Tensor]) -> None:
        self._tokens, self._draft_ids = tokens, draft_ids

    def length(self, known: Tensor) -> Tensor:
        return known

    def at(self, slots: Tensor) -> Tensor:
        at = slots.clamp(max=self._tokens.shape[1] - 1).expand(len(self._tokens), -1)
        return self._draft_ids(self._tokens.gather(1, at))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Spellings:
    """The draft ids of every target token, at least one each, as tensors; ``first`` begins a draft sequence."""

    ids: Tensor  # [P] int64
    start: Tensor  # [V] int64, where a token's ids begin
    count: Tensor  # [V] int64
    first: int | None  # None: nothing is added

    @staticmethod
    def make(spelled: Sequence[Sequence[int]], first: int | None, device: torch.device | str) -> "Spellings":
        """From the draft ids of each target token."""
        count = torch.tensor([len(ids) for ids in spelled], dtype=torch.int64, device=device)
        return Spellings(
            ids=torch.tensor([one for ids in spelled for one in ids], dtype=torch.int64, device=device),
            start=count.cumsum(0) - count,
            count=count,
            first=first,
        )


@final
class Spelled(DraftSequence):
    """Each of the target's ``tokens`` [B, T] is one or more draft tokens, by ``spellings``.

    A row's sequence is their concatenation, after ``first`` where its first token does not begin with that itself. A
    slot's token is found by a binary search in the running sum of counts, so nothing is built that grows with T but it.
    """

    def __init__(self, tokens: Tensor, spellings: Spellings) -> None:
        self._tokens, self._spellings = tokens, spellings
        self._counts = spellings.count[tokens]  # [B, T]
        self._ends = self._counts.cumsum(-1)  # [B, T]
        if spellings.first is not None:
            begins = spellings.ids[spellings.start[tokens[:, :1]]] != spellings.first
            self._ends = self._ends + begins

    def length(self, known: Tensor) -> Tensor:
        ends = self._ends.gather(1, (known - 1).clamp(min=0)[:, None])[:, 0]
        return torch.where(known > 0, ends, 0)

    def at(self, slots: Tensor) -> Tensor:
        spellings, rows = self._spellings, len(self._tokens)
        slots = slots.expand(rows, -1).contiguous()
        index = torch.searchsorted(self._ends, slots, right=True).clamp(max=self._tokens.shape[1] - 1)
        counts = self._counts.gather(1, index)
        piece = slots - self._ends.gather(1, index) + counts
        token = self._tokens.gather(1, index)
        found = spellings.ids[spellings.start[token] + torch.minimum(piece, counts - 1).clamp(min=0)]
        return found if spellings.first is None else torch.where(piece < 0, spellings.first, found)
