"""Drafts with the target itself, without some of its attentions and MLPs (2309.08168, 2410.06916).

Not the training recipe LayerSkip (2404.16710), whose targets are drafted for by ``early_exit``. B rows, n nodes.
"""

from collections.abc import Hashable
from typing import final

from torch import Tensor

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, Outcome, Tree
from paceline.drafters.base import DrafterContext
from paceline.drafters.growing import DraftInput, GrowingDrafter
from paceline.drafters.hidden_states import with_root
from paceline.drafters.sublayer_search import OnTheFly, SublayerSearch
from paceline.drafters.tree.shapes import Shape
from paceline.models.base import LM, FusedDrafting, PendingInputs
from paceline.models.guided import GuidedLM
from paceline.models.sublayers import LayerSkipping, SkippedSublayers


@final
class LayerSkipDrafter(GrowingDrafter):
    """The target itself without ``sublayers``, some of its attentions and MLPs, on its own cache.

    Committed slots are the target's. The root and the draft are read in the scratch above them, and the verifying
    forward writes the same slots anew, with all sub-layers: nothing of the draft is kept.

    ``on_the_fly`` (None: the set stays) searches for a better set between steps, beginning with ``sublayers``; an empty
    set then stands for sub-layers spread evenly. ``shape`` (None: a chain) and ``draws`` (None: all that the
    shape allows) are as in ModelDrafter. Raises ValueError if the shape allows no draw.
    """

    inputs = frozenset({DraftInput.EMBEDDING})
    origins = ("layer_skip",)

    def __init__(
        self,
        *,
        sublayers: SkippedSublayers,
        on_the_fly: OnTheFly | None = None,
        draws: frozenset[Draw] | None = None,
        shape: Shape | None = None,
    ) -> None:
        super().__init__(lm=None, shape=shape, draws=draws)
        self.given, self.on_the_fly = sublayers, on_the_fly
        self.needs_same_tokens = on_the_fly is not None
        if on_the_fly is not None:
            self.num_search_nodes, self.num_extra_rows = on_the_fly.window, 1  # the search has a cache of its own
        self.search: SublayerSearch | None = None
        self._searches = False  # whether it may search in the step

    @property
    def host_state(self) -> Hashable:
        """The set that a search has chosen, which a recorded step runs; None where it may be changed in the step."""
        return () if self.search is None else None if self._searches else self.search.best

    @property
    def own_model(self) -> None:
        return None

    @property
    def sublayers(self) -> SkippedSublayers:
        """What it leaves out now."""
        return self.given if self.search is None else self.search.best

    def max_nodes(self, num_draft_tokens: int) -> int:
        """Nodes of the largest tree, or of the root and the forest that it reads, whichever is larger."""
        shape = self.shape_at(num_draft_tokens)
        return 1 + max(shape.num_drafted, shape.num_expanded)

    def check_target(self, context: DrafterContext) -> None:
        if not isinstance(context.target, LayerSkipping):
            raise ValueError(
                "the drafter 'layer_skip' leaves out sub-layers of native models, and this target runs all of its "
                "layers or none: load it with backend='native', or give another drafter"
            )
        self.given.check(context.target.num_layers)

    def bind(self, context: DrafterContext) -> None:
        """The target without its sub-layers; guided rows are drafted for with their negative prompts."""
        assert isinstance(context.target, LayerSkipping)
        self.search = None
        if self.on_the_fly is not None:
            self.search = SublayerSearch(self.on_the_fly, context, first=self.given)
        self.lm = self._without(context, self.sublayers)

    def allocate(self, context: DrafterContext, *, max_expanded: int) -> None:
        self.cache = context.cache  # whose length is the target's: only verification commits

    def begin_step(self, batch: Batch, plan: StepPlan) -> None:
        """Search on for a better set, now and then, in steps with a draft whose plan lets it."""
        super().begin_step(batch, plan)
        self._searches = False
        if self.search is not None and plan.num_draft_tokens:
            self._searches = plan.searches and not self.search.done
            if self.search.step(batch, may_try=plan.searches):
                self.lm = self._without(self.context, self.search.best)

    def stand_by(self, batch: Batch, num_tokens: int) -> None:
        """It does not search."""
        self._searches = False

    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """The prompts are in the target's cache."""

    def draft_fused(self, batch: Batch, tokens: Tensor, valid: Tensor, *, greedy: bool) -> bool:
        """Read the root, draft and read a chain in one call."""
        assert isinstance(self.lm, FusedDrafting)
        count = self.reads.long() - 1  # nothing before the root; rows without a draft read nothing
        pending = PendingInputs(count=count, max_count=0)
        return self.lm.draft_fused(batch, self.cache, pending, tokens, valid, greedy=greedy)

    def read_root(self, batch: Batch) -> Tensor:
        """Read the root as the first scratch node."""
        self.batch = batch
        tree = batch.chain(batch.root[:, None], self.reads[:, None])
        logits = self.lm(tree, self.cache).logits
        assert logits is not None
        return logits

    def score_nodes(self, forest: Tree, start: int) -> Tensor:
        tree = with_root(self.batch.root, self.reads, forest)
        logits = self.lm(tree, self.cache, start=1 + start).logits
        assert logits is not None
        return logits

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, hidden: dict[int, Tensor]) -> None:
        """Nothing to keep: verification wrote the accepted slots."""

    def _without(self, context: DrafterContext, skipped: SkippedSublayers) -> LM:
        assert isinstance(context.target, LayerSkipping)
        lm = context.target.without(skipped)
        return lm if context.guidance is None else GuidedLM(lm, context.guidance)
