"""No draft: every step is one node and one token. The honest baseline runs through the same loop."""

from typing import final

from paceline.core.batch import Batch
from paceline.core.plan import StepPlan
from paceline.core.tree import Draw, NoDraft, Tree
from paceline.drafters.base import StatelessDrafter


@final
class NoDrafter(StatelessDrafter):
    """No draft: plain decoding, one token a step. Suits every verifier."""

    origins = ("none",)
    draws = frozenset(Draw)

    def max_nodes(self, num_draft_tokens: int) -> int:
        return 1

    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """The root [B, 1]."""
        return Tree.make_chain(batch.root[:, None], batch.active[:, None], no_draft_reason=NoDraft.OFF)
