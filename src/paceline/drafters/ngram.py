"""Prompt lookup: drafts the tokens that followed an earlier occurrence of the sequence's last n-gram.

B rows, k draft tokens.
"""

from typing import final

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
        tokens, valid = batch.ngram_chain(plan.num_draft_tokens, max_ngram=self.max_ngram, min_ngram=self.min_ngram)
        return batch.chain(tokens, valid, no_draft_reason=NoDraft.NO_MATCH)
