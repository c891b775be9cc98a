"""A draft model whose chains another one drafts: what a staged drafter gives the drafter of its draft model.

B rows, D tokens of a chain.
"""

from collections.abc import Sequence
from typing import Protocol, final

from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.cache import View
from paceline.core.tree import Draw, Resume, Tree
from paceline.models.base import LM, FusedDrafting, LogitsFor, Output, PendingInputs, SharedLayers
from paceline.models.wrapped import WrappedLM

STAGED_DRAWS = frozenset({Draw.SHARED, Draw.FIXED, Draw.IID})  # draws that need one sample of each distribution
INNER_DRAWS = {  # draws of an inner drafter for those of its draft model, best first
    Draw.SHARED: (Draw.SHARED, Draw.FIXED),
    Draw.FIXED: (Draw.FIXED, Draw.SHARED),
    Draw.IID: (Draw.IID, Draw.FIXED),
}


class ChainDrafting(Protocol):
    """As models/base.FusedDrafting.draft_fused, by ``lm``."""

    def __call__(
        self, lm: LM, batch: Batch, cache: View, pending: PendingInputs, tokens: Tensor, valid: Tensor, *, greedy: bool
    ) -> bool: ...


@final
class StagedLM(WrappedLM[LM], FusedDrafting):
    """``lm``, whose chains ``draft_chain`` drafts."""

    fused_draws = STAGED_DRAWS

    def __init__(self, lm: LM, draft_chain: ChainDrafting) -> None:
        super().__init__(lm)
        self._draft_chain = draft_chain

    def __call__(
        self,
        tree: Tree,
        cache: View,
        *,
        start: int = 0,
        taps: Sequence[int] = (),
        logits_for: LogitsFor = LogitsFor.ALL,
        resume: Resume | None = None,
        last_states: int | None = None,
    ) -> Output:
        """As ``lm``."""
        return self.lm(
            tree, cache, start=start, taps=taps, logits_for=logits_for, resume=resume, last_states=last_states
        )

    def draft_fused(
        self,
        batch: Batch,
        cache: View,
        pending: PendingInputs,
        tokens: Tensor,
        valid: Tensor,
        *,
        greedy: bool,
        shared_layers: SharedLayers | None = None,
    ) -> bool:
        if shared_layers is not None or pending.states is not None:
            return False
        return self._draft_chain(self.lm, batch, cache, pending, tokens, valid, greedy=greedy)


def staged_draws(draft: frozenset[Draw], inner: frozenset[Draw]) -> frozenset[Draw]:
    """The draws of a draft model that draws by ``draft``, where one that draws by ``inner`` drafts for it."""
    return frozenset(draw for draw in STAGED_DRAWS & draft if not inner.isdisjoint(INNER_DRAWS[draw]))
