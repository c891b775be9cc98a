"""Maps between the token ids of a draft model or head and those of the target.

D the draft's vocabulary, V the target's.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Self, final

import torch
from torch import Tensor

from paceline.core.host import integers
from paceline.draft_heads.draft_sequence import DraftSequence, OneToOne, Spelled, Spellings
from paceline.models.base import LM
from paceline.models.draft_vocab import with_draft_vocab
from paceline.models.native.decoder import DecoderLM


class VocabMap(ABC):
    """Converts draft logits to target logits, and target ids to draft ids."""

    draft_size: int
    target_size: int
    same_ids: bool  # the draft reads the target's ids: one that both vocabularies have is the same token in both
    drafted: Tensor | None = None  # [D] target ids of the logits, where the draft reads more tokens than it drafts
    max_pieces: int = 1  # draft tokens that one of the target's makes at most

    @abstractmethod
    def target_logits(self, logits: Tensor) -> Tensor:
        """``logits`` [..., D] as logits [..., V], -inf for tokens that the draft does not have."""

    @abstractmethod
    def draft_ids(self, tokens: Tensor) -> Tensor:
        """Draft ids of target ``tokens``; a fixed draft id for tokens that the draft does not have."""

    def sequence(self, tokens: Tensor) -> DraftSequence:
        """The draft's sequences of rows whose target tokens are ``tokens`` [B, T]."""
        return OneToOne(tokens, self.draft_ids)

    @abstractmethod
    def spell(self, tokens: Sequence[int]) -> list[int]:
        """The draft's sequence of a row, on the host."""


@final
class PaddedVocab(VocabMap):
    """The same tokenizer on both sides: vocabulary sizes differ at most by padding at the end.

    A target id that the draft does not have is read as the draft's last one.
    """

    same_ids = True

    def __init__(self, *, draft_size: int, target_size: int) -> None:
        self.draft_size, self.target_size = draft_size, target_size

    def target_logits(self, logits: Tensor) -> Tensor:
        """Padded with -inf, or cut, at the end."""
        padding = self.target_size - self.draft_size
        return torch.nn.functional.pad(logits, (0, padding), value=-torch.inf) if padding else logits

    def draft_ids(self, tokens: Tensor) -> Tensor:
        return tokens.clamp(max=self.draft_size - 1)

    def spell(self, tokens: Sequence[int]) -> list[int]:
        return [min(token, self.draft_size - 1) for token in tokens]


@final
class ReducedVocab(VocabMap):
    """The same tokenizer on both sides, and a draft model that reads all tokens and drafts ``ids`` [D] alone (FR-Spec,
    2502.14856).

    A target id that the draft does not have is read as ``last_read``, its last one. Raises ValueError for ids that the
    target does not have.
    """

    same_ids = True

    def __init__(self, ids: Tensor, *, target_size: int, last_read: int) -> None:
        if integers(ids)[-1] >= target_size:
            raise ValueError(f"draft ids to {integers(ids)[-1]}: the target has {target_size} tokens")
        self.draft_size, self.target_size, self.drafted, self._last_read = len(ids), target_size, ids, last_read

    def target_logits(self, logits: Tensor) -> Tensor:
        """Each logit at its id."""
        unfilled = logits.new_full((*logits.shape[:-1], self.target_size), -torch.inf)
        assert self.drafted is not None
        return unfilled.index_copy(-1, self.drafted, logits)

    def draft_ids(self, tokens: Tensor) -> Tensor:
        return tokens.clamp(max=self._last_read)

    def spell(self, tokens: Sequence[int]) -> list[int]:
        return [min(token, self._last_read) for token in tokens]


def reduce_vocab(lm: LM, ids: Tensor, *, target_size: int) -> tuple[DecoderLM, ReducedVocab]:
    """``lm`` as one that drafts the tokens ``ids`` [D] alone for a target of ``target_size`` tokens, and its map.

    Raises ValueError as ``ReducedVocab`` and ``with_draft_vocab`` do.
    """
    ids = ids.to(lm.device)
    vocab = ReducedVocab(ids, target_size=target_size, last_read=lm.vocab_size - 1)
    return with_draft_vocab(lm, ids), vocab


@final
class MappedVocab(VocabMap):
    """A draft vocabulary with ids of its own, as the reduced ones of EAGLE-3 (2503.01840) and FR-Spec (2502.14856).

    Those reduce the output head alone and embed target ids, so they need ``target_logits`` but not ``draft_ids``.
    ``target_ids[d]`` is the target's id of draft token d, -1 if the target does not have that token: drafts are of the
    tokens that both have, which is token-level intersection (TLI, 2502.05202) for a draft of another tokenizer. A
    target token that the draft does not have is read as its ``spellings``, draft tokens of the same text, else as
    draft token ``unknown``. ``first`` (None: nothing) begins a draft sequence whose target tokens do not. Raises
    ValueError for ids outside the vocabularies, for two draft tokens with one target id, for a map without a token, and
    for an empty spelling.
    """

    same_ids = False

    def __init__(
        self,
        *,
        target_ids: Sequence[int],
        target_size: int,
        unknown: int = 0,
        spellings: Mapping[int, Sequence[int]] | None = None,
        first: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        known = {target: draft for draft, target in enumerate(target_ids) if target != -1}
        if not known or len(known) + list(target_ids).count(-1) != len(target_ids):
            raise ValueError(f"{len(target_ids)} draft tokens with {len(known)} target ids: give each an id of its own")
        if min(known) < 0 or max(known) >= target_size:
            raise ValueError(f"target ids {min(known)}..{max(known)}: the target has ids 0 to {target_size - 1}")
        if not 0 <= unknown < len(target_ids):
            raise ValueError(f"unknown={unknown}: the draft has ids 0 to {len(target_ids) - 1}")
        self.draft_size, self.target_size = len(target_ids), target_size
        self._in_target = torch.tensor(list(known.keys()), dtype=torch.int64, device=device)
        shared = torch.tensor(list(known.values()), dtype=torch.int64, device=device)
        self._in_draft = None if len(known) == self.draft_size else shared  # None: all of them, in order
        self._draft_ids = torch.full((target_size,), unknown, dtype=torch.int64, device=device)
        self._draft_ids[self._in_target] = shared
        self._first, spellings = first, spellings or {}
        self._spelled = [[known.get(token, unknown)] for token in range(target_size)]
        for token, ids in spellings.items():
            if not ids or not 0 <= min(ids) <= max(ids) < self.draft_size or not 0 <= token < target_size:
                raise ValueError(
                    f"target token {token} spelled as draft tokens {list(ids)}: give ids, at least one, below "
                    f"{self.draft_size} for a token below {target_size}"
                )
            if token not in known:
                self._spelled[token] = list(ids)
        self._spellings = None
        if spellings or first is not None:
            self.max_pieces = max(map(len, self._spelled))
            self._spellings = Spellings.make(self._spelled, first, device)

    @classmethod
    def from_offsets(cls, d2t: Tensor, *, target_size: int, unknown: int = 0) -> Self:
        """From the ``d2t`` [D] of EAGLE-3 checkpoints: target id = draft id + d2t[draft id]."""
        ids = d2t.to(torch.int64) + torch.arange(len(d2t), device=d2t.device)
        return cls(target_ids=integers(ids), target_size=target_size, unknown=unknown, device=d2t.device)

    @classmethod
    def from_mask(cls, t2d: Tensor, *, unknown: int = 0) -> Self:
        """From the ``t2d`` [V] of EAGLE-3 checkpoints: true for target ids that the draft has, in ascending order."""
        ids = integers(t2d.nonzero()[:, 0])
        return cls(target_ids=ids, target_size=len(t2d), unknown=unknown, device=t2d.device)

    def target_logits(self, logits: Tensor) -> Tensor:
        """Each logit at its target id."""
        known = logits if self._in_draft is None else logits.index_select(-1, self._in_draft)
        unfilled = logits.new_full((*logits.shape[:-1], self.target_size), -torch.inf)
        return unfilled.index_copy(-1, self._in_target, known)

    def draft_ids(self, tokens: Tensor) -> Tensor:
        return self._draft_ids[tokens]

    def sequence(self, tokens: Tensor) -> DraftSequence:
        return OneToOne(tokens, self.draft_ids) if self._spellings is None else Spelled(tokens, self._spellings)

    def spell(self, tokens: Sequence[int]) -> list[int]:
        spelled = [one for token in tokens for one in self._spelled[token]]
        adds = self._first is not None and spelled[:1] != [self._first]
        return [self._first, *spelled] if adds and self._first is not None and spelled else spelled
