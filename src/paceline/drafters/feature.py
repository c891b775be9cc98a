"""The base of drafters whose head works from one hidden state of the target, without attention and without a cache.

R rows, B = R, n nodes, H hidden size, W the width of a node's state, V vocabulary.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.tree import Draw, Outcome, Tree
from paceline.draft_heads.feature_head import FeatureHead
from paceline.drafters.base import DrafterContext
from paceline.drafters.growing import GrowingDrafter
from paceline.drafters.hidden_states import check_head_target
from paceline.drafters.last_states import LastHiddenStates
from paceline.drafters.tree.base import GrownTree
from paceline.drafters.tree.shapes import Shape
from paceline.models.base import LM, FusedDrafting, PendingInputs


class FeatureDrafter(GrowingDrafter):
    """Drafts no deeper than ``head`` predicts, with a state per node that was scored.

    ``lm`` is the head's decoder in the form that runs here (None: itself). It drafts chains in one call if it can, and
    is not run otherwise: the head has matrices alone. ``shape`` (None: a chain) is what it drafts, ``draws`` (None: all
    that the shape allows) limits how tokens are drawn. Raises ValueError if the shape allows none of them.
    """

    inputs = frozenset()
    maps_fused = True
    num_reread = 1

    def __init__(
        self,
        *,
        head: FeatureHead,
        lm: LM | None = None,
        draws: frozenset[Draw] | None = None,
        shape: Shape | None = None,
    ) -> None:
        super().__init__(lm=head.decoder if lm is None else lm, shape=shape, draws=draws, vocab=head.vocab_map)
        self.head = head
        self.taps = head.taps
        self.last_states = None if head.reads_all_states else 1

    @property
    def own_weights(self) -> nn.Module:
        return self.head

    @property
    def draft_vocab_size(self) -> int:
        return self.head.draft_vocab_size

    def shape_at(self, depth: int) -> Shape:
        return super().shape_at(min(depth, self.head.sizes.depth))

    def check_target(self, context: DrafterContext) -> None:
        check_head_target(context, num_layers=self.head.taps[-1], vocab_size=self.head.decoder.vocab_size)

    def bind(self, context: DrafterContext) -> None:
        """What the head computes at each depth, by the weights that it has now."""
        self.depth_models = self.head.depth_models

    def allocate(self, context: DrafterContext, *, max_expanded: int) -> None:
        """One hidden state per row; the cache of a decoder without layers is empty."""
        self.cache = self.lm.new_cache(context.rows, 1).view()
        self.states = LastHiddenStates(context, tap=self.head.taps[0], count=1, hidden_size=self.head.hidden_size)
        # While a draft grows: the states [B, n, W] of the nodes that were scored last, where the first of them is in
        # the forest, and their depth, 0 being the root's.
        self.scored: tuple[Tensor, int, int] | None = None

    def prefill(self, batch: Batch, admission: Admission, hidden: Mapping[int, Tensor]) -> None:
        """Keep the states before the roots."""
        self.states.admit(admission, hidden)

    def draft_fused(self, batch: Batch, tokens: Tensor, valid: Tensor, *, greedy: bool) -> bool:
        """Draft from the state before the root in one call."""
        assert isinstance(self.lm, FusedDrafting)
        pending = PendingInputs(
            count=self.reads.to(torch.int64), max_count=1, states=self.states.states, depth_models=self.depth_models
        )
        return self.lm.draft_fused(batch, self.cache, pending, tokens, valid, greedy=greedy)

    def read_root(self, batch: Batch) -> Tensor:
        before = self.head.begin(self.head.read_feature(self.states.states[:, 0]))
        states = self.head.advance(before, batch.root, 0)
        self.scored = states[:, None], 0, 0
        return self.head.logits_of(states, 0)[:, None]

    def score_nodes(self, forest: Tree, start: int) -> Tensor:
        """The nodes of a call are one level, whose parents were scored in the call before."""
        assert self.scored is not None
        states, first, depth = self.scored
        depth += 1
        tokens = forest.tokens[:, start:]
        if not self.head.reads_tokens:
            self.scored = states, start, depth
            return self.head.logits_of(states[:, 0], depth)[:, None].expand(-1, tokens.shape[1], -1)
        parents = (forest.parents[:, start:] - first).clamp(min=0)
        above = states.gather(1, parents[..., None].expand(-1, -1, states.shape[-1]))
        states = self.head.advance(above.flatten(0, 1), tokens.flatten(), depth)
        self.scored = states.unflatten(0, tokens.shape), start, depth
        return self.head.logits_of(states, depth).unflatten(0, tokens.shape)

    def finish(self, batch: Batch, grown: GrownTree) -> Tree:
        self.scored = None
        return grown.tree

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, hidden: dict[int, Tensor]) -> None:
        """Keep the state of the newest accepted token."""
        self.states.update(tree, outcome, hidden)
