"""Drafts chains in one call of a model that picks its own tokens (models/base.FusedDrafting).

B rows, D depth.
"""

from dataclasses import replace
from typing import Protocol, final

import torch
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

    Tokens are the likeliest if those are what the verifier wants, else as the model draws them: the batch's own picks
    where nothing else is agreed on.
    """

    def __init__(self, grower: TopologyGrower, context: DrafterContext) -> None:
        self.depth, self.greedy = len(grower.depths), context.draw is Draw.FIXED
        tokens = torch.zeros(context.rows, 1 + self.depth, dtype=torch.int64, device=context.device)
        self.tree = grower.topology.tree(tokens, tokens.bool())  # but for tokens and validity that of every step
        self.forest_index = grower.forest_index.expand(context.rows, -1)

    def grow(
        self, batch: Batch, draft: ChainDrafter, no_draft_reason: NoDraft, *, max_context: int | None = None
    ) -> GrownTree | None:
        """A chain for every row of at most ``max_context`` tokens; None if ``draft`` cannot."""
        tokens, valid = batch.begin_chain(self.depth, longest=max_context)
        if not draft(batch, tokens, valid, greedy=self.greedy):
            return None
        tree = replace(self.tree, tokens=tokens, valid=valid, no_draft_reason=no_draft_reason)
        return GrownTree(tree=tree, forest_index=self.forest_index)


def fused_chain(grower: TreeGrower, context: DrafterContext, draws: frozenset[Draw]) -> FusedChain | None:
    """Drafts the trees of ``grower`` in one call; None if they are no chains, or the model does not draw tokens so."""
    if not isinstance(grower, TopologyGrower) or not grower.topology.chain or grower.topology.max_depth == 0:
        return None
    return FusedChain(grower, context) if context.draw in draws else None
