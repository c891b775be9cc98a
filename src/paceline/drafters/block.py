"""Drafts a block of tokens in one forward of a small decoder over the target's hidden states (DFlash, 2602.06036).

B rows, N nodes, n states, b slots of a block, D depth, S taps, H hidden size, V vocabulary.
"""

from collections.abc import Hashable
from functools import partial
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.cache import SlotCache, View
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, Outcome, Resume, Tree
from paceline.draft_heads.block import BlockHead
from paceline.drafters.base import DrafterContext
from paceline.drafters.growing import DraftInput, GrowingDrafter
from paceline.drafters.hidden_states import PendingStates, check_head_target, made_of_valid
from paceline.drafters.tree.base import GrownTree
from paceline.drafters.tree.shapes import Shape
from paceline.models.base import LM, BlockReading, FusedDrafting, LogitsFor, PendingInputs
from paceline.models.prefill import CHUNK

MAX_SKIPPED_STEPS = 32  # steps without a draft until the states that have collected are read


@final
class BlockDrafter(GrowingDrafter):
    """The newest known token and masked slots after it, which see each other and all of the sequence before them.

    The sequence is a cache of keys and values that ``head`` makes of the target's hidden states at verified tokens. The
    states of a step are queued, and read before the next draft. One forward gives the distributions of all depths.

    They are independent of each other: tokens that are drawn from them one by one fit badly together, so by default
    (``draws`` None) the likeliest ones are proposed. Any other draw is as exact. With a Markov head (DSpark,
    2607.05147), which is asked token by token, each has a distribution that depends on the one before, and all draws
    are offered. With a confidence head, this says where chains end early. Where a kernel can, it drafts a chain in one
    call.

    ``shape`` (None: a chain) is what it drafts, no deeper than a block. ``lm`` (None: the head's decoder) runs
    ``head.decoder``. Raises ValueError if the shape allows none of the draws.
    """

    inputs = frozenset({DraftInput.EMBEDDING, DraftInput.HIDDEN})
    origins = ("block",)
    joins = True
    maps_fused = True

    def __init__(
        self,
        *,
        head: BlockHead,
        lm: LM | None = None,
        draws: frozenset[Draw] | None = None,
        shape: Shape | None = None,
    ) -> None:
        draws = frozenset({Draw.FIXED}) if draws is None and head.markov is None else draws
        super().__init__(lm=head.decoder if lm is None else lm, shape=shape, draws=draws, vocab=head.vocab_map)
        self.head = head
        self.taps = head.taps
        if head.confidence is not None:
            self.confidence = self._confidence

    @property
    def slot_bytes(self) -> int:
        return self.lm.slot_bytes

    @property
    def host_state(self) -> Hashable:
        return self.num_read, self.overflows, bool(self.skipped)

    def resume(self, host_state: Hashable) -> None:
        """The step is done, or about to be done again."""
        self.lag = self.next_lag

    def shape_at(self, depth: int) -> Shape:
        return super().shape_at(min(depth, self.head.options.depth))

    def begin_step(self, batch: Batch, plan: StepPlan) -> None:
        """Bound what any row has yet to read, before the step and after it."""
        super().begin_step(batch, plan)
        gained = max(plan.most_gained(row) for row in range(batch.rows))
        self._bound(reads=min(plan.num_draft_tokens, self.depth) > 0, num_tokens=gained)

    def stand_by(self, batch: Batch, num_tokens: int) -> None:
        """All rows wait with what they may gain."""
        self._bound(reads=False, num_tokens=num_tokens)

    def _bound(self, *, reads: bool, num_tokens: int) -> None:
        """Every row gains at most ``num_tokens``, after it ``reads`` what it has."""
        # One of two values, so that recorded steps are of few kinds.
        self.num_read = self.ordinary_lag if self.lag <= self.ordinary_lag else self.unread.capacity
        left = 0 if reads else self.lag
        self.overflows = left + num_tokens > self.unread.capacity
        # No less than after an ordinary step, so that compiled steps see one value.
        self.next_lag = max(self.ordinary_lag, num_tokens + (0 if self.overflows else left))

    def check_target(self, context: DrafterContext) -> None:
        check_head_target(context, num_layers=self.head.num_target_layers, vocab_size=self.head.target_vocab)

    def bind(self, context: DrafterContext) -> None:
        """How the head reads states and drafts, by the weights that it has now."""
        with torch.no_grad():
            self.projection = self.head.context_projection()
            self.block_input = self.head.block_input(self.projection)

    def allocate(self, context: DrafterContext, *, max_expanded: int) -> None:
        """The cache of the sequences, and queues of states that are not in it yet."""
        rows, device, decoder, size = context.rows, context.device, self.head.decoder, self.head.options.block_size
        with torch.no_grad():
            mask = self.head.mask_embedding()
        self.hidden = mask.expand(rows, size, -1).contiguous()
        slots = torch.arange(size, device=device)
        self.masked = (slots > 0).expand(rows, -1)
        self.slots, self.together = (
            slots.expand(rows, -1),
            torch.ones(rows, size, size, dtype=torch.bool, device=device),
        )
        self.cache = self.lm.new_cache(rows, context.max_length + size).view()
        # Of no layers: for logits alone.
        self.outputs = SlotCache(
            num_layers=0,
            rows=rows,
            capacity=max(1, self.depth),
            num_kv_heads=decoder.config.num_kv_heads,
            head_dim=decoder.config.head_dim,
            dtype=decoder.dtype,
            device=device,
        ).view()
        most = 1 + context.max_draft_tokens + context.lag
        width = len(self.taps) * self.head.hidden_size
        self.unread = PendingStates(context, most + MAX_SKIPPED_STEPS, width, dtype=decoder.dtype)
        self.ordinary_lag = min(most, 1 + self.depth)
        self.lag = self.next_lag = self.ordinary_lag  # the host's bound on the states that a row has yet to read
        self.num_read, self.overflows = self.ordinary_lag, False
        # While a draft grows: the logits [B, D, V]; for the Markov head the states [B, b, H] that the LM head reads,
        # and its own of the nodes that were scored, the root first.
        self.logits: Tensor | None = None
        self.normed, self.states = self.hidden, list[Tensor]()

    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Read the states of prompts up to their roots; a prefix is copied from its source, or read from its queue."""
        view = self.lm.admit(self.cache, admission)
        if admission.max_prefix_length:
            self._read(view, self.unread.states[admission.source, :-1], admission.prefix_length - view.length)
        self.unread.count.index_fill_(0, admission.rows, 0)
        if not hidden:
            return
        states = torch.cat([hidden[tap] for tap in self.taps], dim=-1)
        for start in range(0, states.shape[1], CHUNK):
            chunk = states[:, start : start + CHUNK]
            self._read(view, chunk, (admission.known - view.length).clamp(0, chunk.shape[1]))

    def prepare(self, batch: Batch, depth: int) -> None:
        """Note how deep the draft is."""
        self.draft_depth = depth

    def can_draft_fused(self, context: DrafterContext) -> bool:
        """Where the head says how all of it drafts."""
        return super().can_draft_fused(context) and self.block_input is not None and self.block_input.whole

    def draft_fused(self, batch: Batch, tokens: Tensor, valid: Tensor, *, greedy: bool) -> bool:
        """Read the queued states of all rows and draft in one call."""
        assert isinstance(self.lm, FusedDrafting)
        pending = self._pending()
        if not self.lm.draft_fused(batch, self.cache, pending, tokens, valid, greedy=greedy):
            return False
        self._have_read(pending.count)
        return True

    def read_root(self, batch: Batch) -> Tensor:
        """Read the queued states and a block: the logits of all depths of the draft; those of the first."""
        first = self.head.options.first_slot
        streams, logits = self._read_block(batch)
        self.streams = streams[:, first : first + self.draft_depth].contiguous()
        self.logits = self._logits(self.streams) if logits is None else logits[:, first : first + self.draft_depth]
        self.scored = batch.root, 0
        markov = self.head.markov
        if markov is None:
            return self.logits[:, :1]
        self.normed = self.head.decoder.norm(streams)
        root, before = batch.root[:, None], (batch.length[:, None] - 2).clamp(min=0)
        known = torch.cat((batch.tokens.gather(1, before), root), dim=1)
        self.states = []
        return self._add_markov(
            self.logits[:, :1], root, torch.zeros_like(root), markov.begin(self.normed, known)[:, None]
        )

    def _read_block(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """The states [B, b, H] of all slots after the last layer, and their logits [B, b, V] if a kernel read them."""
        last = self.head.options.num_layers
        if isinstance(self.lm, BlockReading) and self.block_input is not None:
            pending = self._pending()
            valid = self.reads[:, None].expand(-1, 1 + self.draft_depth).contiguous()
            tokens = F.pad(batch.root[:, None], (0, self.draft_depth))
            output = self.lm.read_block(self.cache, pending, tokens, valid)
            self._have_read(pending.count)
            return output.hidden[last], output.logits
        self._read_queue(self.num_read)
        tree = Tree(
            tokens=F.pad(batch.root[:, None], (0, self.slots.shape[1] - 1)),  # those of masked slots are not embedded
            parents=self.slots - 1,
            depth=self.slots,
            ancestors=self.together,  # every slot sees every other
            valid=self.reads[:, None].expand_as(self.slots),
            draw=torch.zeros_like(self.slots),
            source=self.slots,
            probs=None,
            origin=self.slots,
            max_depth=self.slots.shape[1] - 1,
            chain=False,
        )
        resume = Resume(layer=0, hidden=self.hidden, ready=self.masked, first=0)
        output = self.lm(tree, self.cache, taps=(last,), logits_for=LogitsFor.NONE, resume=resume)
        return output.hidden[last], None

    def _pending(self) -> PendingInputs:
        """The queued states of all rows."""
        return PendingInputs(
            count=self.unread.count, max_count=self.num_read, states=self.unread.states, block=self.block_input
        )

    def _have_read(self, count: Tensor) -> None:
        """Commit the ``count`` [B] of states that were read, and empty the queue."""
        self.cache.commit(count)
        count.zero_()

    def score_nodes(self, forest: Tree, start: int) -> Tensor:
        """The logits of the depth below each node."""
        assert self.logits is not None
        below = forest.depth[:, start:, None] + 1  # of the nodes' children, less 1
        tokens, markov = forest.tokens[:, start:], self.head.markov
        self.scored = tokens[:, -1], forest.max_depth + 1
        logits = _gather(self.logits, below)
        if markov is None:
            return logits
        state = _gather(torch.cat(self.states, dim=1), forest.parents[:, start:, None] + 1)  # the root's is the first
        return self._add_markov(logits, tokens, below[..., 0], state)

    def _add_markov(self, logits: Tensor, before: Tensor, depth: Tensor, state: Tensor) -> Tensor:
        """``logits`` [B, n, V] at ``depth`` [B, n] with those that the tokens ``before`` [B, n] add.

        With ``candidates`` only the likeliest of ``logits`` themselves are left.
        """
        markov, candidates = self.head.markov, self.head.options.candidates
        assert markov is not None
        slot = depth + self.head.options.first_slot
        added, state = markov(before, _gather(self.normed, slot[..., None]), slot, state)
        self.states.append(state)
        if candidates is None:
            return logits + added
        least = logits.topk(min(candidates, logits.shape[-1]), dim=-1).values[..., -1:]
        return (logits + added).masked_fill(logits < least, -torch.inf)

    def _confidence(self) -> Tensor:
        """See tree/base.ConfidenceScorer; of chains alone."""
        before, depth = self.scored
        return self.head.predict_confidence(self.streams[:, depth], before)

    def finish(self, batch: Batch, grown: GrownTree) -> Tree:
        self.logits = None
        return grown.tree

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, hidden: dict[int, Tensor]) -> None:
        """Queue the states of the root and of the accepted path."""
        if self.overflows:
            self._read_queue(self.unread.capacity)
        path = None if tree.chain else outcome.path
        self.unread.append([hidden[tap] for tap in self.taps], outcome.num_committed, path=path)
        self.lag = self.next_lag

    def _logits(self, states: Tensor) -> Tensor:
        """The head's logits [B, D, V] of ``states`` [B, D, H] after its last layer."""
        valid = self.reads[:, None].expand(states.shape[:2])
        resume = Resume(layer=0, hidden=states, ready=valid, first=states.shape[1])
        logits = self.lm(
            Tree.make_chain(torch.zeros_like(valid, dtype=torch.int64), valid), self.outputs, resume=resume
        )
        assert logits.logits is not None
        return logits.logits

    def _read_queue(self, size: int) -> None:
        """Read the queued states, at most ``size`` (static) of any row."""
        self._read(self.cache, self.unread.states[:, :size], self.unread.count)
        self.unread.count.zero_()

    def _read(self, view: View, states: Tensor, count: Tensor) -> None:
        """Write keys and values of the first ``count`` [B] of ``states`` [B, n, S * H] to ``view``, and commit them."""
        index = torch.arange(states.shape[1], device=states.device)
        at = (view.length[:, None] + index).clamp(max=view.capacity - 1)
        valid = index < count[:, None]
        project = partial(self.head.project_context, projection=self.projection)
        keys, values = made_of_valid(project, valid, states, at) if self.head.uses_kernels else project(states, at)
        rows = view.target_rows(valid)
        for layer in range(self.head.options.num_layers):
            view.write(layer, rows, at, keys[:, :, layer], values[:, :, layer])
        view.commit(count)


def _gather(values: Tensor, index: Tensor) -> Tensor:
    """``values`` [B, n, W] at ``index`` [B, m, 1]: [B, m, W]."""
    return values.gather(1, index.expand(-1, -1, values.shape[-1]))
