"""A small decoder drafts from the target's last hidden states and the tokens after them (the prophet transformer).

R rows, B = R, N nodes, s states, W the prophet's width, V vocabulary.
"""

from collections.abc import Hashable
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.plan import StepPlan
from paceline.core.tree import Draw, NoDraft, Outcome, Resume, Tree
from paceline.draft_heads.prophet import ProphetHead
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.last_states import LastHiddenStates, check_target
from paceline.drafters.tree import fused_chain, make_grower, possible_draws
from paceline.drafters.tree.shapes import Shape, Topology
from paceline.models.base import LM, Ahead, Entrance, Head, Missing, Output


@final
class ProphetDrafter(Drafter):
    """A small decoder over the target's last hidden states, which knows of the text what these say.

    Its cache holds the states, the root and what is drafted, and begins anew in every step: nothing is committed and
    nothing taken back, so neither the text nor a draft has a length that it could not serve.

    ``lm`` runs the head's decoder (None: itself). ``shape`` (None: a chain as long as asked for) is what it drafts,
    ``draws`` (None: all that the shape allows) limits how tokens are drawn. Raises ValueError where the shape allows
    none of them.
    """

    origins = ("prophet",)
    accepts_other_tokens = True

    def __init__(
        self,
        *,
        head: ProphetHead,
        lm: LM | None = None,
        draws: frozenset[Draw] | None = None,
        shape: Shape | None = None,
    ) -> None:
        self.head, self.shape = head, shape
        self.lm: LM = head.decoder if lm is None else lm
        self.draws = possible_draws(shape, draws)
        self.branches = shape is not None and shape.max_width > 1
        self.taps = head.taps
        self.num_reread = head.sizes.num_states

    @property
    def host_state(self) -> Hashable:
        return ()

    def max_nodes(self, num_draft_tokens: int) -> int:
        return 1 + self._shape(num_draft_tokens).num_drafted

    def start(self, context: DrafterContext) -> None:
        """A cache of a few slots per row. Raises ValueError for a target that is not the head's."""
        check_target(self.head, self.head.decoder, context)
        depths = range(1, context.max_draft_tokens + 1)
        self.growers = [make_grower(self._shape(depth), context) for depth in depths]
        ahead = isinstance(self.lm, Ahead)
        self.chains = [fused_chain(grower, context) if ahead else None for grower in self.growers]
        count, device = self.head.sizes.num_states, context.device
        self.states = LastHiddenStates(
            tap=self.head.taps[0],
            count=count,
            rows=context.rows,
            hidden_size=self.head.hidden_size,
            dtype=context.cache.dtype,
            device=device,
        )
        self.ready = (torch.arange(count + 1, device=device) < count).expand(context.rows, -1)
        self.entrance = Entrance(norm=self.head.norm, product=self.head.project)
        self.count = torch.full((context.rows,), count, device=device)
        ahead = max((grower.num_read for grower in self.growers), default=0)
        storage = self.lm.new_cache(context.rows, count + 1 + ahead)
        # What is committed never changes: nothing, then the states and the root.
        self.empty, self.begun = storage.view().apart(), storage.view().apart()
        self.begun.truncate(count + 1)

    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Keep the states before the roots."""
        self.states.begin(admission, hidden)

    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """The shape grown to the depth of the plan, each token drawn as the verifier asked."""
        if plan.num_draft_tokens == 0:
            return Tree.make_chain(batch.root[:, None], batch.active[:, None], no_draft_reason=NoDraft.OFF)
        grower, chain = self.growers[plan.num_draft_tokens - 1], self.chains[plan.num_draft_tokens - 1]
        grown = None if chain is None else chain.grow(batch, self._run_ahead, NoDraft.DECLINED)
        if grown is None:
            grown = grower.grow(batch, self._begin(batch), batch.draft_room, self._read, NoDraft.DECLINED)
        return grown.tree

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, output: Output) -> None:
        """Keep the states of what was accepted, whatever was drafted behind it."""
        self.states.advance(tree, outcome, output)

    def _shape(self, depth: int) -> Shape:
        return Topology.chain(depth) if self.shape is None else self.shape.cut(depth)

    def _begin(self, batch: Batch) -> Tensor:
        """Logits [B, 1, V] after the root, read behind the states."""
        count = self.head.sizes.num_states
        tokens = F.pad(batch.root[:, None], (count, 0))  # what stands for the states is never looked up
        tree = Tree.make_chain(tokens, batch.active[:, None].expand_as(tokens))
        slots = F.pad(self.head.slots(self.states.held), (0, 0, 0, 1))  # [B, s + 1, W]
        resume = Resume(layer=0, hidden=slots, ready=self.ready, first=count)
        logits = self.lm(tree, self.empty, head=Head.LAST, resume=resume).logits
        assert logits is not None
        return logits

    def _read(self, forest: Tree, start: int) -> Tensor:
        """Logits [B, n, V] after nodes ``start`` on of what is drafted so far."""
        logits = self.lm(forest, self.begun, start=start).logits
        assert logits is not None
        return logits

    def _run_ahead(self, batch: Batch, tokens: Tensor, valid: Tensor, *, greedy: bool) -> bool:
        """Read the states and the root, draft and read a chain in one call."""
        assert isinstance(self.lm, Ahead)
        states = self.states.held
        missing = Missing(count=self.count, most=states.shape[1], states=states, entrance=self.entrance)
        return self.lm.run_ahead(batch, self.empty, missing, tokens, valid, greedy=greedy)
