"""Draft vocabularies: the target tokens that a draft head with a smaller LM head drafts (EAGLE-3, 2503.01840).

V the target's vocabulary, D the draft's.
"""

from collections.abc import Sequence
from typing import Self, final

import torch
from torch import Tensor, nn

from paceline.draft_heads.vocab_map import MappedVocab
from paceline.models.draft_vocab import check_draft_ids
from paceline.models.native.decoder import DecoderLM


@final
class DraftVocab(nn.Module):
    """The target ids ``ids`` [D], ascending, of the D logits of a head. They are saved with it, and not trained.

    A new one has the first ids: ``set_ids`` gives it others, such as those that are frequent in the training data.
    """

    ids: Tensor

    def __init__(self, *, size: int, target_size: int, device: torch.device | str = "cpu") -> None:
        """Raises ValueError for a size that is not in 1 to ``target_size``."""
        super().__init__()
        if not 1 <= size <= target_size:
            raise ValueError(f"draft_vocab_size={size}: the target has {target_size} tokens, so give 1 to that many")
        self.target_size = target_size
        self._known = list(range(size))  # of the host
        self.register_buffer("ids", torch.arange(size, device=device), persistent=False)

    @classmethod
    def make(cls, size: int | None, target: DecoderLM) -> Self | None:
        """A vocabulary of ``size`` tokens of ``target``; None for None, which is all of them."""
        return None if size is None else cls(size=size, target_size=target.vocab_size, device=target.device)

    @property
    def map(self) -> MappedVocab:
        """For a drafter."""
        return MappedVocab(target_ids=self._known, target_size=self.target_size, device=self.ids.device)

    def set_ids(self, ids: Tensor | Sequence[int]) -> None:
        """Replace the ids. Raises ValueError for another number, and for ids that do not ascend or are out of range."""
        known = check_draft_ids(ids, self.target_size)
        if len(known) != len(self._known):
            raise ValueError(f"draft_ids: {len(known)}, and the head has {len(self._known)}")
        self._known = known
        self.ids.copy_(torch.tensor(self._known, dtype=torch.int64, device=self.ids.device))


def most_frequent(counts: Tensor, size: int) -> Tensor:
    """The ``size`` ids [D], ascending, of the largest ``counts`` [V]; of equal counts the lower ids."""
    return counts.sort(descending=True, stable=True).indices[:size].sort().values
