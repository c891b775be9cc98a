"""Matrices draft several tokens at once from the target's last hidden state (the linear heads of ProphetNet).

R rows, B = R, n nodes, D depths, H hidden size, V vocabulary.
"""

from collections.abc import Hashable
from typing import final

import torch
from torch import Tensor

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.plan import StepPlan
from paceline.core.tree import Draw, NoDraft, Outcome, Resume, Tree
from paceline.draft_heads.linear_prophet import LinearProphetHead
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.last_states import LastHiddenStates, check_target
from paceline.drafters.tree import make_grower, possible_draws
from paceline.drafters.tree.shapes import Shape, Topology
from paceline.models.base import LM, Output


@final
class LinearProphetDrafter(Drafter):
    """Tokens from the target's last hidden state by a matrix for each depth, blind to what is drafted before them.

    It drafts no deeper than its head has matrices. ``lm`` runs the head's decoder (None: itself), ``shape`` and
    ``draws`` are as in ProphetDrafter. Raises ValueError where the shape allows none of the draws.
    """

    origins = ("linear_prophet",)
    accepts_other_tokens = True
    num_reread = 1

    def __init__(
        self,
        *,
        head: LinearProphetHead,
        lm: LM | None = None,
        draws: frozenset[Draw] | None = None,
        shape: Shape | None = None,
    ) -> None:
        self.head, self.shape = head, shape
        self.lm: LM = head.decoder if lm is None else lm
        self.draws = possible_draws(shape, draws)
        self.branches = shape is not None and shape.max_width > 1
        self.taps = head.taps

    @property
    def host_state(self) -> Hashable:
        return ()

    def max_nodes(self, num_draft_tokens: int) -> int:
        return 1 + self._shape(num_draft_tokens).num_drafted

    def start(self, context: DrafterContext) -> None:
        """Take room for a state per row. Raises ValueError for a target that is not the head's."""
        check_target(self.head, self.head.decoder, context)
        depth = self.head.sizes.depth
        self.growers = [make_grower(self._shape(asked + 1), context) for asked in range(context.max_draft_tokens)]
        self.states = LastHiddenStates(
            tap=self.head.taps[0],
            count=1,
            rows=context.rows,
            hidden_size=self.head.hidden_size,
            dtype=context.cache.dtype,
            device=context.device,
        )
        self.ready = torch.ones(context.rows, depth, dtype=torch.bool, device=context.device)
        self.tokens = torch.zeros(context.rows, depth, dtype=torch.int64, device=context.device)
        self.cache = self.lm.new_cache(context.rows, depth).view()  # of no layers

    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Keep the states before the roots."""
        self.states.begin(admission, hidden)

    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """The shape grown to the depth of the plan, each token drawn as the verifier asked."""
        if plan.num_draft_tokens == 0:
            return Tree.make_chain(batch.root[:, None], batch.active[:, None], no_draft_reason=NoDraft.OFF)
        streams = self.head.streams(self.states.held[:, 0])
        tree = Tree.make_chain(self.tokens, batch.active[:, None].expand_as(self.tokens))
        resume = Resume(layer=0, hidden=streams, ready=self.ready, first=self.head.sizes.depth)
        logits = self.lm(tree, self.cache, resume=resume).logits  # [B, D, V]
        assert logits is not None
        grower = self.growers[plan.num_draft_tokens - 1]

        def read(forest: Tree, start: int) -> Tensor:
            below = forest.depth[:, start:, None] + 1  # of the nodes' children, less 1
            return logits.gather(1, below.expand(-1, -1, logits.shape[-1]))

        return grower.grow(batch, logits[:, :1], batch.draft_room, read, NoDraft.DECLINED).tree

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, output: Output) -> None:
        """Keep the state of the newest token that was accepted."""
        self.states.advance(tree, outcome, output)

    def _shape(self, depth: int) -> Shape:
        depth = min(depth, self.head.sizes.depth)
        return Topology.chain(depth) if self.shape is None else self.shape.cut(depth)
