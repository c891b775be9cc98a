"""What drafters with a head over pairs share: features of the target and the tokens after them (EAGLE, MTP).

R rows, B = R, n pairs, N nodes, H hidden size of the target, W of the head, V vocabulary.
"""

from collections.abc import Hashable, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.cache import View
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, Outcome, Resume, Tree
from paceline.draft_heads.pair import PairHead
from paceline.drafters.base import DrafterContext
from paceline.drafters.growing import DraftInput, GrowingDrafter
from paceline.drafters.hidden_states import (
    PendingStates,
    check_head_target,
    made_of_valid,
    path_hidden,
    read_hidden,
)
from paceline.drafters.tree.shapes import Shape
from paceline.models.base import LM, FusedDrafting, LogitsFor, Output, PendingInputs
from paceline.models.prefill import CHUNK

MAX_SKIPPED_STEPS = 32  # steps without a draft until the head reads the features that have collected


class PairDrafter(GrowingDrafter):
    """Drafts with a head that continues from pairs of a feature and the next token.

    Its cache holds the pairs of verified tokens alone, with the target's own features: after each step the features of
    accepted tokens take the place of those that the head had predicted. Slot t is pair t. A row's last pair, whose
    token is the root, waits in a queue with those that came with it until the next draft, which begins from it. A
    sequence of a single token has no pair yet, and no draft.

    ``lm`` runs the head's decoder (None: itself). ``shape`` (None: a chain) is what it drafts, ``draws`` (None: all
    that the shape allows) limits how tokens are drawn. Raises ValueError if the shape allows none of them.
    """

    inputs: ClassVar[frozenset[DraftInput]] = frozenset({DraftInput.HIDDEN})
    joins = True
    maps_fused = True
    num_reread = 1  # the feature before the root
    num_reread_of_prefix = 1  # the last token of a prefix is paired with what comes after it

    def __init__(
        self,
        *,
        head: PairHead,
        lm: LM | None = None,
        draws: frozenset[Draw] | None = None,
        shape: Shape | None = None,
    ) -> None:
        super().__init__(lm=lm or head.drafting_decoder, shape=shape, draws=draws, vocab=head.vocab_map)
        self.head = head
        self.taps = head.taps

    @property
    def slot_bytes(self) -> int:
        return self.lm.slot_bytes

    @property
    def own_weights(self) -> nn.Module:
        return self.head

    @property
    def host_state(self) -> Hashable:
        return self.max_unread, self.overflows, bool(self.skipped)

    def resume(self, host_state: Hashable) -> None:
        """The step is done, or about to be done again."""
        self.lags = self.next_lags

    def begin_step(self, batch: Batch, plan: StepPlan) -> None:
        """Bound what each row has yet to read, before the step and after it."""
        super().begin_step(batch, plan)
        if plan.max_depth:
            self._bound({row: plan.most_gained(row) for row in self.skipped})
        else:
            self._bound(dict.fromkeys(self.skipped, 1))

    def stand_by(self, batch: Batch, num_tokens: int) -> None:
        """All rows wait with what they may gain."""
        self.skipped = range(len(self.lags))
        self._bound(dict.fromkeys(self.skipped, num_tokens))

    def _bound(self, gained: dict[int, int]) -> None:
        """Rows that are skipped gain at most ``gained`` tokens, the others a whole draft and the one after it."""
        lags, ordinary, capacity = self.lags, self.depth + 1, self.unread.capacity
        waiting, drafted = 0, ordinary
        self.next_lags = [ordinary] * len(lags)
        for row, lag in enumerate(lags):
            if row in gained:
                self.next_lags[row] = lag + gained[row]
                waiting = max(waiting, lag + gained[row])
            else:
                drafted = max(drafted, lag)
        self.overflows = waiting > capacity
        # One of two values, so that recorded steps are of few kinds.
        self.max_unread = ordinary if drafted == ordinary else capacity
        if self.overflows:
            for row, most in gained.items():
                self.next_lags[row] = most

    def check_target(self, context: DrafterContext) -> None:
        check_head_target(context, num_layers=self.head.num_layers, vocab_size=self.head.target_vocab)

    def bind(self, context: DrafterContext) -> None:
        """How the head reads pairs, by the weights that it has now."""
        self.pair_input = self.head.pair_input

    def allocate(self, context: DrafterContext, *, max_expanded: int) -> None:
        """The head's cache, and queues of features."""
        rows, device = context.rows, context.device
        self.cache = self.lm.new_cache(rows, context.max_length + max_expanded).view()
        capacity = context.max_draft_tokens + 1 + MAX_SKIPPED_STEPS
        dtype = self.head.decoder.dtype
        self.unread = PendingStates(context, capacity, self.head.width, dtype=dtype)
        # Pairs of the queue that this step's draft has committed; the step is not settled until it is observed.
        self.num_read = torch.zeros(rows, dtype=torch.int64, device=device)
        self.index = torch.arange(max(CHUNK, capacity), device=device)
        # The host's bounds on the pairs that each row has yet to read.
        self.lags = self.next_lags = [self.depth + 1] * rows
        self.max_unread, self.overflows = self.depth + 1, False

    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Read the pairs of the prompts but the last: those of a prefix are copied, or read with its source's features.

        The last token of a prefix was read again by the target, so every pair of the prefix is one of its source too.
        """
        tokens = batch.tokens[admission.rows]
        view = self.lm.admit(self.cache, admission)
        self.num_read.index_fill_(0, admission.rows, 0)
        if admission.max_prefix_length:
            missing = admission.prefix_length - view.length
            self._read(view, self.unread.states[admission.source, :-1], tokens, missing)
        last = torch.zeros(len(admission.rows), 1, self.head.width, dtype=self.cache.dtype, device=batch.device)
        if hidden:
            before = admission.known - admission.prefix_length - 1  # pairs that the target read here, but the last
            longest = next(iter(hidden.values())).shape[1]
            for start in range(0, longest, CHUNK):
                states = {tap: one[:, start : start + CHUNK] for tap, one in hidden.items()}
                chunk = self._features(states, before + 1 - start)
                size = chunk.shape[1]
                self._read(view, chunk, tokens, (before - start).clamp(0, size))
                here = ((before >= start) & (before < start + size))[:, None, None]
                at = (before - start).clamp(0, size - 1)[:, None, None].expand_as(last)
                last = torch.where(here, chunk.gather(1, at), last)
        self.unread.states[admission.rows, 0] = last[:, 0]
        self.unread.count.index_copy_(0, admission.rows, admission.known.clamp(max=1))
        self.lags = [self.depth + 1 if row in admission.row_numbers else lag for row, lag in enumerate(self.lags)]

    def prepare(self, batch: Batch, depth: int) -> None:
        """Take back what was read in a step before that was aborted."""
        self.cache.truncate(self.cache.length - self.num_read)
        self.num_read.zero_()

    def can_draft_fused(self, context: DrafterContext) -> bool:
        """Where the head says how it reads pairs."""
        return super().can_draft_fused(context) and self.pair_input is not None

    def draft_fused(self, batch: Batch, tokens: Tensor, valid: Tensor, *, greedy: bool) -> bool:
        """Read the pairs that wait, the last with the root, and draft from it in one call."""
        assert isinstance(self.lm, FusedDrafting)
        count = torch.where(self.reads, self.unread.count, 0)
        pending = PendingInputs(
            count=count, max_count=self.max_unread, states=self.unread.states, pairs=self.pair_input
        )
        if not self.lm.draft_fused(batch, self.cache, pending, tokens, valid, greedy=greedy):
            return False
        self.cache.commit(count)
        self.num_read.copy_(count)
        return True

    def read_root(self, batch: Batch) -> Tensor:
        """Read the pairs that wait; the last has the root."""
        count, size = torch.where(self.reads, self.unread.count, 0), self.max_unread
        output = self._read(self.cache, self.unread.states[:, :size], batch.tokens, count, logits_for=LogitsFor.LAST)
        self.num_read.copy_(count)
        out = output.hidden[self.lm.num_layers]
        last = (count - 1).clamp(min=0)[:, None, None].expand(-1, 1, out.shape[-1])
        self.features = [self.head.feedback(out.gather(1, last))]  # of the root, then of the forest as it is scored
        assert output.logits is not None
        return output.logits

    def score_nodes(self, forest: Tree, start: int) -> Tensor:
        """Nodes are paired with what came out of their parents."""
        known, above = torch.cat(self.features, dim=1), forest.parents[:, start:, None] + 1
        feature = known.gather(1, above.expand(-1, -1, known.shape[-1]))
        pairs = self.head.drafted_pair(feature, forest.tokens[:, start:])
        resume = Resume(layer=0, hidden=pairs, ready=forest.valid[:, start:], first=pairs.shape[1])
        tap = self.lm.num_layers
        output = self.lm(forest, self.cache, start=start, taps=(tap,), resume=resume)
        self.features.append(self.head.feedback(output.hidden[tap]))
        assert output.logits is not None
        return output.logits

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, hidden: dict[int, Tensor]) -> None:
        """Queue the target's features of the verified tokens; the tokens after them are known now."""
        if tree.max_depth or self.overflows:  # else nothing was read, or in an aborted step, which ``prepare`` undoes
            self.unread.count.masked_fill_(self.num_read > 0, 0)
            self.num_read.zero_()
        if self.overflows:
            self._read(self.cache, self.unread.states[:, :-1], batch.tokens, self.unread.count)
            self.unread.count.zero_()
        num, copied = outcome.num_committed, self.head.copied_tap
        if copied is not None:
            self.unread.append([hidden[copied]], num, path=None if tree.chain else outcome.path)
        else:
            states = {tap: path_hidden(hidden, tap, tree, outcome) for tap in self.taps}
            self.unread.append([self._features(states, num)], num)
        self.lags = self.next_lags

    def _max_depth(self, batch: Batch) -> Tensor:
        return torch.where(batch.length > 1, super()._max_depth(batch), 0)

    def _features(self, states: Mapping[int, Tensor], count: Tensor) -> Tensor:
        """The features [B, n, W] of the target's ``states`` at each tap, of which the first ``count`` [B] are read."""
        if not self.head.uses_kernels:
            return self.head.feature(states)
        size = next(iter(states.values())).shape[1]
        valid = self.index[:size] < count[:, None]
        (features,) = made_of_valid(
            lambda *given: (self.head.feature(dict(zip(states, given, strict=True))),), valid, *states.values()
        )
        return features

    def _read(
        self,
        view: View,
        features: Tensor,
        tokens: Tensor,
        count: Tensor,
        *,
        logits_for: LogitsFor = LogitsFor.NONE,
    ) -> Output:
        """Commit the next ``count`` [B] pairs of ``features`` [B, n, W] with the sequences ``tokens`` [B, T]."""
        at = view.length[:, None] + 1 + self.index[: features.shape[1]]
        after = tokens.gather(1, at.clamp(max=tokens.shape[1] - 1))
        first = at == 1
        taps = () if logits_for is LogitsFor.NONE else (self.lm.num_layers,)
        pairs = self.head.pair(features, after, first)
        return read_hidden(self.lm, view, pairs, count, taps=taps, logits_for=logits_for)
