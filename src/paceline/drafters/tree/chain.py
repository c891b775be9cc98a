"""Grows a chain by a model that runs ahead by itself. Knows no model and no cache.

B rows, D depth.
"""

from typing import Protocol, final

from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.tree import Draw, NoDraft
from paceline.drafters.base import DrafterContext
from paceline.drafters.tree.base import Grower, Grown
from paceline.drafters.tree.topology import TopologyGrower

PICKED = frozenset({Draw.FIXED, Draw.SHARED})  # a chain's tokens that need no noise but the target's


class Run(Protocol):
    """Picks and reads a chain: see models/base.Ahead."""

    def __call__(self, batch: Batch, tokens: Tensor, valid: Tensor, *, greedy: bool) -> bool: ...


@final
class ChainGrower:
    """The chains that ``plain`` grows, by what reads them by itself, from the text on.

    Tokens are the batch's own picks, or where ``greedy`` the likeliest.
    """

    def __init__(self, plain: TopologyGrower, *, greedy: bool) -> None:
        self.plain, self.greedy = plain, greedy
        self.depth = len(plain.depths)

    def grow(self, batch: Batch, run: Run, no_draft_reason: NoDraft, *, longest: int | None = None) -> Grown | None:
        """A chain for every row whose text has at most ``longest`` tokens; None where ``run`` cannot."""
        tokens, valid = batch.begin_chain(self.depth, longest=longest)
        if not run(batch, tokens, valid, greedy=self.greedy):
            return None
        return Grown(
            tree=self.plain.frame.tree(tokens, valid, no_draft_reason=no_draft_reason),
            slots=self.plain.slots.expand_as(tokens),
        )


def fused_chain(grower: Grower, context: DrafterContext) -> ChainGrower | None:
    """What grows the trees of ``grower`` without its help; None where they are no chains of a model's own picks."""
    if not isinstance(grower, TopologyGrower) or not grower.frame.chain or grower.frame.max_depth == 0:
        return None
    return ChainGrower(grower, greedy=context.draw is Draw.FIXED) if context.draw in PICKED else None
