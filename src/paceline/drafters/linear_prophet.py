"""Drafts all depths at once from the target's last hidden state, with one matrix per depth (ProphetNet, 2001.04063).

R rows, B = R, n nodes, D depths, H hidden size, V vocabulary.
"""

from typing import final

import torch
from torch import Tensor

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.tree import Draw, Outcome, Resume, Tree
from paceline.draft_heads.linear_prophet import LinearProphetHead
from paceline.drafters.base import DrafterContext
from paceline.drafters.growing import DraftInput, GrowingDrafter
from paceline.drafters.hidden_states import check_head_target
from paceline.drafters.last_states import LastHiddenStates
from paceline.drafters.tree.base import GrownTree
from paceline.drafters.tree.shapes import Shape
from paceline.models.base import LM


@final
class LinearProphetDrafter(GrowingDrafter):
    """Predicts every depth from the target's last hidden state alone, independently of the tokens drafted before it.

    It drafts no deeper than its head has matrices. ``lm`` runs the head's decoder (None: itself), ``shape`` and
    ``draws`` are as in ProphetDrafter. Raises ValueError if the shape allows none of the draws.
    """

    inputs = frozenset({DraftInput.HIDDEN})
    origins = ("linear_prophet",)
    num_reread = last_states = 1

    def __init__(
        self,
        *,
        head: LinearProphetHead,
        lm: LM | None = None,
        draws: frozenset[Draw] | None = None,
        shape: Shape | None = None,
    ) -> None:
        super().__init__(lm=lm or head.drafting_decoder, shape=shape, draws=draws, vocab=head.vocab_map)
        self.head = head
        self.taps = head.taps

    def shape_at(self, depth: int) -> Shape:
        return super().shape_at(min(depth, self.head.sizes.depth))

    def check_target(self, context: DrafterContext) -> None:
        check_head_target(context, num_layers=self.head.taps[-1], vocab_size=self.head.decoder.vocab_size)

    def allocate(self, context: DrafterContext, *, max_expanded: int) -> None:
        """One hidden state per row."""
        depth = self.head.sizes.depth
        self.states = LastHiddenStates(context, tap=self.head.taps[0], count=1, hidden_size=self.head.hidden_size)
        self.ready = torch.ones(context.rows, depth, dtype=torch.bool, device=context.device)
        self.tokens = torch.zeros(context.rows, depth, dtype=torch.int64, device=context.device)
        self.cache = self.lm.new_cache(context.rows, depth).view()  # of no layers
        self.logits: Tensor | None = None  # [B, D, V] while a draft grows

    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Keep the states before the roots."""
        self.states.admit(admission, hidden)

    def can_draft_fused(self, context: DrafterContext) -> bool:
        """One call gives the logits of every depth as it is."""
        return False

    def read_root(self, batch: Batch) -> Tensor:
        """The logits of all depths; those of the first."""
        hidden = self.head.predict_hidden(self.states.states[:, 0])
        tree = Tree.make_chain(self.tokens, self.reads[:, None].expand_as(self.tokens))
        resume = Resume(layer=0, hidden=hidden, ready=self.ready, first=self.head.sizes.depth)
        self.logits = self.lm(tree, self.cache, resume=resume).logits
        assert self.logits is not None
        return self.logits[:, :1]

    def score_nodes(self, forest: Tree, start: int) -> Tensor:
        """The logits of the depth below each node."""
        assert self.logits is not None
        below = forest.depth[:, start:, None] + 1  # of the nodes' children, less 1
        return self.logits.gather(1, below.expand(-1, -1, self.logits.shape[-1]))

    def finish(self, batch: Batch, grown: GrownTree) -> Tree:
        self.logits = None
        return grown.tree

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, hidden: dict[int, Tensor]) -> None:
        """Keep the state of the newest accepted token."""
        self.states.update(tree, outcome, hidden)
