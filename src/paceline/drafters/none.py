"""Plain decoding as a drafter: every step has one node and gives one token. The baseline runs in the same loop."""

from typing import final

from paceline.core.batch import Batch
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, NoDraft, Tree
from paceline.drafters.base import StatelessDrafter, root_only


@final
class NoDrafter(StatelessDrafter):
    """No draft: plain decoding, one token a step. Suits every verifier. ``reason`` is reported as why."""

    origins = ("none",)
    draws = frozenset(Draw)
    nests = False

    def __init__(self, reason: NoDraft = NoDraft.OFF, /) -> None:
        self.reason = reason

    def max_nodes(self, num_draft_tokens: int) -> int:
        return 1

    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """The root [B, 1]."""
        return root_only(batch, self.reason)
