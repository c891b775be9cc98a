"""Drafts with the target's first layers and a small head; the target verifies from the layer where they ended.

B rows, N nodes, n nodes of a call, D depth, V vocabulary, H hidden size, e the *shared layers*: those run for drafting.
"""

from collections.abc import Hashable
from dataclasses import replace
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, Outcome, Resume, Tree
from paceline.draft_heads.early_exit import EarlyExitHead
from paceline.drafters.base import DrafterContext, root_only
from paceline.drafters.growing import DraftInput, GrowingDrafter
from paceline.drafters.hidden_states import PendingStates, check_head_target, path_hidden, read_hidden, with_root
from paceline.drafters.recycled_states import RecycledStates
from paceline.drafters.tree.base import GrownTree
from paceline.drafters.tree.shapes import Chain, Shape, Topology
from paceline.models.base import LM, FusedDrafting, LogitsFor, PendingInputs, SharedLayers
from paceline.models.prefill import CHUNK

MAX_SKIPPED_STEPS = 32  # steps without a draft until the head reads the states that have collected


@final
class EarlyExitDrafter(GrowingDrafter):
    """Leaves the target after its first layers, and predicts the next token with ``head`` from their hidden states.

    The shared layers read each draft token in the scratch of the target's own cache, so verification only runs the
    remaining layers. The head has a cache of its own, of the target's states at verified tokens, which it reads before
    the next draft. ``lm`` (None: the head's decoder) runs it.

    ``shape`` (None: a chain) and ``draws`` (None: all that the shape allows) are as in ModelDrafter. Without
    ``resumes`` the target verifies from its first layer, for comparison. Raises ValueError if the shape allows no draw.
    """

    inputs = frozenset({DraftInput.HIDDEN})
    origins = ("early_exit",)
    maps_fused = True

    def __init__(
        self,
        *,
        head: EarlyExitHead,
        lm: LM | None = None,
        draws: frozenset[Draw] | None = None,
        shape: Shape | None = None,
        resumes: bool = True,
    ) -> None:
        super().__init__(lm=lm or head.drafting_decoder, shape=shape, draws=draws, vocab=head.vocab_map)
        self.head, self.resumes = head, resumes
        self.taps = head.taps

    @property
    def slot_bytes(self) -> int:
        decoder = self.head.decoder
        recycled = 0 if self.head.recycle is None else decoder.config.hidden_size * decoder.dtype.itemsize
        return self.lm.slot_bytes + recycled

    @property
    def host_state(self) -> Hashable:
        return self.root_read, self.max_unread, self.overflows, bool(self.skipped)

    def resume(self, host_state: Hashable) -> None:
        """The step is done, or about to be done again."""
        assert isinstance(host_state, tuple)
        self.root_read, *_ = host_state
        self.lags = self.next_lags

    def begin_step(self, batch: Batch, plan: StepPlan) -> None:
        """Bound what each row has yet to read, before the step and after it."""
        super().begin_step(batch, plan)
        depth = min(plan.num_draft_tokens, self.depth)
        if depth not in self.num_leading:
            self.num_leading[depth] = _num_leading(self.shape_at(depth))
        self._bound(num_tokens=1)

    def stand_by(self, batch: Batch, num_tokens: int) -> None:
        """All rows wait with what they may gain."""
        self.skipped = range(len(self.lags))
        self._bound(num_tokens=num_tokens)

    def _bound(self, *, num_tokens: int) -> None:
        """Rows that are skipped gain at most ``num_tokens``."""
        waiting = [lag if row in self.skipped else 0 for row, lag in enumerate(self.lags)]
        self.overflows = max(waiting) + num_tokens > self.unread.capacity
        drafted = max([0, *(lag for row, lag in enumerate(self.lags) if row not in self.skipped)])
        # One of two values, so that recorded steps are of few kinds.
        self.max_unread = self.depth if drafted <= self.depth else self.unread.capacity
        self.next_lags = [
            (0 if self.overflows else lag) + num_tokens if row in self.skipped else self.depth
            for row, lag in enumerate(self.lags)
        ]

    def max_nodes(self, num_draft_tokens: int) -> int:
        """Nodes of the largest tree, or of the forest that the shared layers read, whichever is larger."""
        shape = self.shape_at(num_draft_tokens)
        return 1 + max(shape.num_drafted, shape.num_expanded)

    def check_target(self, context: DrafterContext) -> None:
        check_head_target(context, num_layers=self.head.num_layers, vocab_size=self.head.decoder.vocab_size)

    def allocate(self, context: DrafterContext, *, max_expanded: int) -> None:
        """The head's cache, and queues of states. Raises ValueError for a target that cannot run its first layers."""
        rows, device = context.rows, context.device
        # A view of the target's cache, whose length is the target's.
        self.shared_layers = context.cache.storage.view(layers=range(self.head.options.exit_layer))
        self._check_shared_layers()
        # By depth. Like the growers, the deepest is known before the first step, which may be compiled.
        self.num_leading = {self.depth: _num_leading(self.shape_at(self.depth))}
        decoder = self.head.decoder
        size, dtype = decoder.config.hidden_size, decoder.dtype
        self.cache = self.lm.new_cache(rows, context.max_length + max_expanded).view()
        self.unread = PendingStates(context, self.depth + MAX_SKIPPED_STEPS, size, dtype=dtype)
        # The host's bounds on the states that each row has yet to read, without the root.
        self.lags = self.next_lags = [self.depth] * rows
        self.max_unread, self.overflows = self.depth, False
        self.root_read = False  # in this step, by the rows that are drafted for
        # The shared layers' states of a chain that is drafted in one call, contiguous for every depth.
        fused = any(chain is not None for _, chain in self.growers.values())
        self.chain_hidden = torch.zeros(rows * (1 + self.depth) * size if fused else 0, dtype=dtype, device=device)
        self.order = torch.arange(1 + self.depth, device=device)
        self.recycled = None
        if self.head.recycle is not None:
            self.recycled = RecycledStates(
                recycle=self.head.recycle,
                rows=rows,
                max_length=context.max_length,
                hidden_size=size,
                dtype=dtype,
                device=device,
            )

    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Read the prompts up to their roots: a prefix is copied from its source, its unread states are read."""
        view = self.lm.admit(self.cache, admission)
        if admission.max_prefix_length:
            missing = admission.prefix_length - view.length
            read_hidden(self.lm, view, self.unread.states[admission.source, :-1], missing)
        self.unread.count.index_fill_(0, admission.rows, 0)
        self.lags = [self.depth if row in admission.row_numbers else lag for row, lag in enumerate(self.lags)]
        if self.recycled is not None:
            self.recycled.copy_prefixes(admission)
        if not hidden:
            return
        states = hidden[self.taps[0]]
        if self.recycled is not None:
            states = states + self.recycled.add_prompts(admission, hidden[self.taps[1]])
        for start in range(0, states.shape[1], CHUNK):
            chunk = states[:, start : start + CHUNK]
            read_hidden(self.lm, view, chunk, (admission.known - view.length).clamp(0, chunk.shape[1]))

    def prepare(self, batch: Batch, depth: int) -> None:
        """The recycled state at every depth of the draft."""
        self.batch, self.draft_depth = batch, depth
        self.recycled_by_depth = None if self.recycled is None else self.recycled.by_depth(batch, depth)
        if self.root_read:  # in a step before that was aborted
            self.cache.truncate(torch.minimum(self.cache.length, batch.length - 1 - self.unread.count))

    def can_draft_fused(self, context: DrafterContext) -> bool:
        return isinstance(self.lm, FusedDrafting) and isinstance(context.target, FusedDrafting)

    def draft_fused(self, batch: Batch, tokens: Tensor, valid: Tensor, *, greedy: bool) -> bool:
        """Read the pending states and the root, draft and read a chain in one call."""
        assert isinstance(self.lm, FusedDrafting)
        rows, nodes = tokens.shape
        hidden = self.chain_hidden[: rows * nodes * self.unread.states.shape[-1]].view(rows, nodes, -1)
        shared = SharedLayers(
            lm=self.context.target, cache=self.shared_layers, hidden=hidden, added=self.recycled_by_depth
        )
        count = torch.where(self.reads, self.unread.count, -1) if self.skipped else self.unread.count
        pending = PendingInputs(
            count=count, max_count=self.max_unread, states=self.unread.states, own_ids=self.head.draft_ids
        )
        if not self.lm.draft_fused(batch, self.cache, pending, tokens, valid, greedy=greedy, shared_layers=shared):
            return False
        self.cache.commit(torch.where(self.reads, self.unread.count + 1, 0))
        self._mark_read()
        self.hidden = [hidden]
        return True

    def read_root(self, batch: Batch) -> Tensor:
        """Read the pending states with the head, then the root."""
        hidden = self._run_shared_layers(root_only(batch), 0)
        self.hidden = [hidden]  # of the root, then of the forest as it is scored
        newest = hidden if self.recycled_by_depth is None else hidden + self.recycled_by_depth[:, :1]
        count = torch.where(self.reads, self.unread.count + 1, 0)
        states = self.unread.followed_by(newest, self.max_unread)
        logits = read_hidden(self.lm, self.cache, states, count, logits_for=LogitsFor.LAST).logits
        self._mark_read()
        assert logits is not None
        return logits

    def score_nodes(self, forest: Tree, start: int) -> Tensor:
        hidden = self._run_shared_layers(with_root(self.batch.root, self.batch.active, forest), 1 + start)
        self.hidden.append(hidden)
        if self.recycled_by_depth is not None:
            depth = forest.depth[:, start:, None] + 1
            hidden = hidden + self.recycled_by_depth.gather(1, depth.expand_as(hidden))
        resume = Resume(layer=0, hidden=hidden, ready=forest.valid[:, start:], first=hidden.shape[1])
        logits = self.lm(forest, self.cache, start=start, resume=resume).logits
        assert logits is not None
        return logits

    def finish(self, batch: Batch, grown: GrownTree) -> Tree:
        """The tree with the states of the shared layers, from which the target resumes."""
        return self._resumable(grown, self.num_leading[self.draft_depth]) if self.resumes else grown.tree

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, hidden: dict[int, Tensor]) -> None:
        """Queue the target's states of the verified tokens, which the head reads before the next draft."""
        num, root = outcome.num_committed, batch.length - outcome.num_committed - 1  # position of the root
        states, path = hidden[self.taps[0]], None if tree.chain else outcome.path
        if self.recycled is not None:
            states, path = path_hidden(hidden, self.taps[0], tree, outcome), None
            states = states + self.recycled.add_step(root, num, path_hidden(hidden, self.taps[1], tree, outcome))
        if self.overflows:
            read_hidden(self.lm, self.cache, self.unread.states[:, :-1], self.unread.count)
            self.unread.count.zero_()
        # A row that was drafted for has read the root already.
        first = torch.minimum((self.cache.length + self.unread.count - root).clamp(min=0), num)
        self.unread.append([states], num, first=first, path=path)
        self.lags, self.root_read = self.next_lags, False

    def _mark_read(self) -> None:
        """The rows that are drafted for have read everything, the root included."""
        self.unread.count.masked_fill_(self.reads, 0)
        self.root_read = True

    def _run_shared_layers(self, tree: Tree, start: int) -> Tensor:
        """The residual stream [B, n, H] after the shared layers, of nodes ``start`` on of a tree with its root."""
        exit_layer = self.head.options.exit_layer
        output = self.context.target(
            tree, self.shared_layers, start=start, taps=(exit_layer,), logits_for=LogitsFor.NONE
        )
        return output.hidden[exit_layer]

    def _check_shared_layers(self) -> None:
        """Run the shared layers without a valid node. Raises ValueError if the target cannot run some of its layers."""
        tokens = torch.zeros(self.context.rows, 1, dtype=torch.int64, device=self.context.device)
        with torch.no_grad():
            self._run_shared_layers(Tree.make_chain(tokens, tokens.bool()), 0)

    def _resumable(self, grown: GrownTree, num_leading: int) -> Tree:
        """The tree with the shared layers' states of its nodes, of which the first ``num_leading`` were all scored.

        The target's scratch is permuted so that each node lies in its own slot.
        """
        tree, nodes = grown.tree, grown.tree.num_nodes
        if self.hidden[0].shape[1] == nodes:  # a chain's, in its own order
            ready = (self.order[:nodes] < nodes - 1).expand_as(tree.tokens)
            resume = Resume(layer=self.taps[0], hidden=self.hidden[0], ready=ready, first=num_leading)
            return replace(tree, resume=resume)
        scored = torch.cat(self.hidden, dim=1)  # in the order of scoring
        slot = grown.forest_index + 1  # 0 for nodes that were not scored, and for the root
        if not tree.chain:
            self.shared_layers.permute(torch.where(slot > 0, slot, -1))
        ready = F.pad(slot[:, 1:] > 0, (1, 0), value=True)
        hidden = scored.gather(1, slot[..., None].expand(-1, -1, scored.shape[-1]))
        return replace(tree, resume=Resume(layer=self.taps[0], hidden=hidden, ready=ready, first=num_leading))


def _num_leading(shape: Shape) -> int:
    """Nodes before the first that is not scored, the root included."""
    if not isinstance(shape, Topology | Chain):
        return 1
    expanded = set(shape.parents)
    return next(node for node in range(len(shape.parents)) if node not in expanded)
