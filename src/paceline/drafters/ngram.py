"""Prompt lookup: drafts the tokens that followed an earlier occurrence of the sequence's last n-gram.

B rows, T tokens of capacity, k draft tokens.
"""

from typing import final

import torch

from paceline.core.batch import Batch
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, NoDraft, Tree
from paceline.drafters.base import StatelessDrafter


@final
class NgramDrafter(StatelessDrafter):
    """Copies the tokens after an earlier occurrence of the sequence's last tokens; needs no model.

    It takes the longest match of the last ``max_ngram`` down to ``min_ngram`` tokens, and the latest among equally long
    ones. A copy that reaches the end of the sequence continues with the copied tokens, so a repeating sequence is
    drafted whole. Raises ValueError unless 1 <= min_ngram <= max_ngram.
    """

    origins = ("ngram",)
    draws = frozenset({Draw.FIXED})

    def __init__(self, *, max_ngram: int = 3, min_ngram: int = 1) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(f"min_ngram={min_ngram}, max_ngram={max_ngram}: need 1 <= min_ngram <= max_ngram")
        self.max_ngram, self.min_ngram = max_ngram, min_ngram

    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """A chain of copies [B, k + 1]; rows without a match have the root alone."""
        device, tokens = batch.device, batch.tokens[:, : batch.max_length]
        column = torch.arange(batch.max_length, device=device)
        end = batch.length[:, None] - 1  # [B, 1] index of the root
        matched = torch.zeros_like(tokens)
        equal = torch.ones_like(tokens, dtype=torch.bool)
        for back in range(self.max_ngram):  # how many tokens up to each column equal the sequence's last ones
            last = tokens.gather(1, (end - back).clamp(min=0))
            shifted = torch.nn.functional.pad(tokens, (back, 0), value=-1)[:, : batch.max_length]
            equal = equal & (shifted == last) & (end >= back)
            matched = matched + equal
        matched = torch.where(column < end, matched, 0)
        score = torch.where(matched >= self.min_ngram, matched * batch.max_length + column, -1)
        best, at = score.max(-1, keepdim=True)  # [B, 1]
        index = torch.arange(plan.num_draft_tokens, device=device)
        period = (end - at).clamp(min=1)
        drafts = tokens.gather(1, (at + 1 + index % period).clamp(max=batch.max_length - 1))
        room = (best >= 0) & batch.active[:, None] & (index < batch.draft_room[:, None])
        chain = torch.cat((batch.root[:, None], drafts), dim=1)
        valid = torch.cat((batch.active[:, None], room), dim=1)
        return Tree.make_chain(chain, valid, no_draft_reason=NoDraft.NO_MATCH)
