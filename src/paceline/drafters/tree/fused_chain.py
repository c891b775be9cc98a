"""Drafts chains in one call of a model that picks its own tokens (models/base.FusedDrafting).

B rows, D depth.
"""

from typing import Protocol, final

from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.tree import Draw, NoDraft
from paceline.drafters.base import DrafterContext
from paceline.drafters.tree.base import GrownTree, TreeGrower
from paceline.drafters.tree.topology import TopologyGrower


class ChainDrafter(Protocol):
    """Fills a chain that begins with the root, and returns False if it cannot; see models/base.FusedDrafting."""

    def __call__(self, batch: Batch, tokens: Tensor, valid: Tensor, *, greedy: bool) -> bool: ...


@final
class FusedChain:
    """Drafts the chains of ``grower`` without scoring node by node.

    Tokens are the likeliest if ``greedy``, else as the model draws them: the batch's own picks where nothing else is
    agreed on.
    """

    def __init__(self, grower: TopologyGrower, *, greedy: bool) -> None:
        self.grower, self.greedy = grower, greedy
        self.depth = len(grower.depths)

    def grow(
        self, batch: Batch, draft: ChainDrafter, no_draft_reason: NoDraft, *, max_context: int | None = None
    ) -> GrownTree | None:
        """A chain for every row of at most ``max_context`` tokens; None if ``draft`` cannot."""
        tokens, valid = batch.begin_chain(self.depth, longest=max_context)
        if not draft(batch, tokens, valid, greedy=self.greedy):
            return None
        return GrownTree(
            tree=self.grower.topology.tree(tokens, valid, no_draft_reason=no_draft_reason),
            forest_index=self.grower.forest_index.expand_as(tokens),
        )


def fused_chain(grower: TreeGrower, context: DrafterContext, draws: frozenset[Draw]) -> FusedChain | None:
    """Drafts the trees of ``grower`` in one call; None if they are no chains, or the model does not draw tokens so."""
    if not isinstance(grower, TopologyGrower) or not grower.topology.chain or grower.topology.max_depth == 0:
        return None
    return FusedChain(grower, greedy=context.draw is Draw.FIXED) if context.draw in draws else None
