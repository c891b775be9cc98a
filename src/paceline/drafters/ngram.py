"""Prompt lookup: drafts the tokens that followed an earlier occurrence of the sequence's last n-gram.

B rows, k draft tokens.
"""

from typing import final

from paceline.core.batch import Batch
from paceline.core.prompt_lookup import NgramOptions
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, NoDraft, Tree
from paceline.drafters.base import StatelessDrafter

MATCHES = ("last", "first")


@final
class NgramDrafter(StatelessDrafter):
    """Copies the tokens after an earlier occurrence of the sequence's last tokens; needs no model.

    It takes the longest match of the last ``max_ngram`` (3) down to ``min_ngram`` (1) tokens, and of equally long ones
    the latest (``match="last"``) or the earliest ("first", as vLLM and transformers do). A copy that reaches the end of
    the sequence continues with the copied tokens (``wrap``, true), so a repeating sequence is drafted whole, or ends
    there. With ``crop`` (false) a draft ends before a stop token of its request: the target says that one itself, and
    nothing comes after it. Raises ValueError unless 1 <= min_ngram <= max_ngram, and for another ``match``.
    """

    origins = ("ngram",)
    draws = frozenset({Draw.FIXED})

    def __init__(
        self, *, max_ngram: int = 3, min_ngram: int = 1, match: str = "last", wrap: bool = True, crop: bool = False
    ) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(f"min_ngram={min_ngram}, max_ngram={max_ngram}: need 1 <= min_ngram <= max_ngram")
        if match not in MATCHES:
            raise ValueError(f"match={match!r}: give {' or '.join(MATCHES)}")
        self.max_ngram, self.min_ngram = max_ngram, min_ngram
        self.options = NgramOptions(
            max_ngram=max_ngram, min_ngram=min_ngram, first=match == "first", wrap=wrap, crop=crop
        )

    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """A chain of copies [B, k + 1]; rows without a match have the root alone."""
        tokens, valid = batch.ngram_chain(plan.num_draft_tokens, self.options)
        return batch.chain(tokens, valid, no_draft_reason=NoDraft.NO_MATCH)
