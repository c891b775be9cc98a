"""Drafts with a second, smaller language model that has a cache of its own.

B rows, N nodes, d depth of the tree, T tokens of capacity, D the draft's vocabulary, V the target's.
"""

from collections.abc import Hashable
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from paceline.core.admission import Admission, Prefix
from paceline.core.batch import Batch
from paceline.core.cache import View
from paceline.core.context import Context, check_context, describe
from paceline.core.guidance import Guidance
from paceline.core.request import Request
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, Outcome, Tree
from paceline.draft_heads.vocab_map import VocabMap
from paceline.drafters.base import DrafterContext
from paceline.drafters.growing import DraftInput, GrowingDrafter
from paceline.drafters.tree.base import GrownTree
from paceline.drafters.tree.shapes import Shape
from paceline.models.base import LM, FusedDrafting, LogitsFor, PendingInputs, max_sequence_length
from paceline.models.guided import GuidedLM
from paceline.models.prefill import prefill, read_next

SLOTS_PER_TOKEN = 2  # of the cache at most; a row whose text takes more of the draft's tokens outgrows its context
CATCH_UP = (8, 64, 256)  # chunk sizes for rows that fell behind


@final
class ModelDrafter(GrowingDrafter):
    """A second, smaller language model with a cache of its own.

    Its cache commits the root itself, so after an ordinary step it lags by the root and, if the accepted path ended in
    a node that it never read, by that one. A row that outgrows the draft's context is not drafted for.

    ``vocab`` maps its token ids to the target's (None: the same ids, and sizes that differ by padding at the end), or
    says which of them ``lm`` has logits of (models/draft_vocab). With other ids, all that it counts and caches is in
    its own tokens: where it lacks one of the target's, it reads several in its place. It drafts those that both have
    alone (TLI, 2502.05202), each of which is one token on either side.
    ``shape`` (None: a chain) is what it drafts, to the depth that a plan asks for. ``draws`` (None: all that the shape
    allows) limits how tokens are drawn. Raises ValueError if the shape allows none of them.

    Of a request's context it reads what the draft model takes; one that takes none drafts from the tokens alone.
    """

    inputs = frozenset({DraftInput.EMBEDDING})
    origins = ("model",)
    postpones = True
    joins = True
    nests = True

    def __init__(
        self,
        *,
        lm: LM,
        draws: frozenset[Draw] | None = None,
        shape: Shape | None = None,
        vocab: VocabMap | None = None,
    ) -> None:
        super().__init__(lm=lm, shape=shape, draws=draws, vocab=vocab)
        self.max_pieces = 1 if vocab is None else vocab.max_pieces
        self.nests = vocab is None or vocab.same_ids  # other token ids cannot be those of the stage above

    @property
    def slot_bytes(self) -> int:
        return self.lm.slot_bytes * min(self.max_pieces, SLOTS_PER_TOKEN)

    @property
    def context_bytes(self) -> int:
        return self.lm.context_bytes

    @property
    def host_state(self) -> Hashable:
        return self.catch_up, bool(self.skipped)

    def resume(self, host_state: Hashable) -> None:
        """The step is done, or about to be done again: rows that are drafted for catch up in what is left of chunks."""
        assert isinstance(host_state, tuple)
        self.catch_up, _ = host_state
        self._caught_up()

    def begin_step(self, batch: Batch, plan: StepPlan) -> None:
        """Choose the chunks in which rows to be drafted for catch up; the others fall back by what they may gain."""
        super().begin_step(batch, plan)
        for row in self.skipped:
            self.lags[row] += plan.most_gained(row) * self.max_pieces
        self.catch_up: tuple[int, ...] = ()
        if not plan.num_draft_tokens:
            return
        lag = max([0, *(lag for row, lag in enumerate(self.lags) if row not in self.skipped)])
        while lag > self.ordinary_lag:
            size = next((size for size in CATCH_UP if size >= lag - self.ordinary_lag), CATCH_UP[-1])
            self.catch_up, lag = (*self.catch_up, size), lag - size

    def stand_by(self, batch: Batch, num_tokens: int) -> None:
        """All rows fall back by what they may gain."""
        self.lags = [lag + num_tokens * self.max_pieces for lag in self.lags]
        self.skipped, self.catch_up = range(len(self.lags)), ()

    def check_target(self, context: DrafterContext) -> None:
        reads, given = self.lm.context_inputs, context.target.context_inputs
        # What may be given instead is the target's own, of its size: ``check_context`` refuses it request by request.
        if any(name not in given or not given[name].is_read_as(one) for name, one in reads.items()):
            raise ValueError(
                f"the draft model reads {describe(reads)} beside tokens, and requests to this target give "
                f"{describe(given)}: give a draft model that reads nothing else"
            )

    def check_context(self, context: Context) -> None:
        reads = self.lm.context_inputs
        names = {*reads, *(one.instead[0] for one in reads.values() if one.instead is not None)}
        own = {name: tensor for name, tensor in context.inputs.items() if name in names}
        try:
            check_context(reads, Context(own) if own else None)
        except ValueError as error:
            raise ValueError(f"the draft model cannot read it: {error}; or take another draft model") from error

    def allocate(self, context: DrafterContext, *, max_expanded: int) -> None:
        """A cache for the longest sequence that both the target's rows and the draft's context allow."""
        # What a row has yet to read in an ordinary step: the root, and the last drafted token if all were accepted.
        self.ordinary_lag = self.max_pieces + 1 + context.lag
        scratch = max(self.ordinary_lag, 1 + max_expanded)
        self.max_context = max_sequence_length(self.lm, num_nodes=scratch)
        if self.max_context < 1:
            raise ValueError(
                f"{self.max_nodes(context.max_draft_tokens) - 1} draft tokens leave no room in the "
                f"{self.lm.max_slots} slots of the draft model's window: lower num_draft_tokens"
            )
        self.max_context = min(self.max_context, context.max_length * min(self.max_pieces, SLOTS_PER_TOKEN))
        capacity = self.max_context + scratch
        self.reader: LM = self.lm
        self.cache: View = self.lm.new_cache(context.rows, capacity).view()
        # Guided rows are drafted for with their negative prompts too, if the draft's context is as long as theirs.
        if context.guidance is not None and self.max_context >= context.max_length:
            self.reader = guided = GuidedLM(self.lm, context.guidance)
            self.cache = guided.new_view(context.rows, capacity)
        # The host's bounds on the tokens that each row has yet to read, the root included.
        self.lags = [self.ordinary_lag] * context.rows
        self.catch_up = ()

    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Read the prompts up to their roots, each from where its own cache ends."""
        assert self.max_context is not None
        admission = self._translated(admission)
        known = admission.known.clamp(max=self.max_context)
        view = self.reader.admit(self.cache, admission)
        # Its cache may hold less of a prefix than the target's; how much less is not known on the host.
        unread = int((known - view.length).max()) if admission.max_prefix_length else admission.unread
        longest = min(self.max_context, max(len(request.tokens) for request in admission.requests))
        sequence = self.vocab_map.sequence(batch.tokens[admission.rows, : batch.max_length])
        tokens = sequence.at(torch.arange(longest, device=batch.device))
        prefill(self.lm, view, tokens, known, min(unread, self.max_context), taps=())
        for row in admission.row_numbers:
            self.lags[row] = self.ordinary_lag

    def postpone(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Take over what the caches hold of prefixes; the rest is caught up with."""
        admission = self._translated(admission)
        self.reader.admit(self.cache, admission)
        for row, request in zip(admission.row_numbers, admission.requests, strict=True):
            self.lags[row] = len(request.tokens) + self.ordinary_lag

    def prepare(self, batch: Batch, depth: int) -> None:
        """Read all unread tokens but the last ``ordinary_lag`` at most; once, however many drafts a step asks for."""
        self.sequence = self.vocab_map.sequence(batch.tokens[:, : batch.max_length])
        for size in self.catch_up:  # the root is read later, with the logits after it
            read_next(self.reader, self.cache, self._next(size), (self._num_unread(batch) - 1).clamp(0, size))
        self.catch_up = ()

    def num_known(self, batch: Batch) -> Tensor:
        return self.sequence.length(batch.length)

    def draft_fused(self, batch: Batch, tokens: Tensor, valid: Tensor, *, greedy: bool) -> bool:
        assert isinstance(self.reader, FusedDrafting) and self.max_context is not None
        reads = self.reads
        if self.max_context < self.context.max_length:
            reads = reads & (batch.length <= self.max_context)
        count = torch.where(reads, batch.length - self.cache.length - 1, -1)
        pending = PendingInputs(count=count, max_count=self.ordinary_lag - 1, own_ids=self.vocab_map.drafted)
        if not self.reader.draft_fused(batch, self.cache, pending, tokens, valid, greedy=greedy):
            return False
        self.cache.commit(count + 1)
        return True

    def read_root(self, batch: Batch) -> Tensor:
        """Read the unread tokens, the root last."""
        tokens, unread = self._next(self.ordinary_lag), self._num_unread(batch)
        logits = read_next(self.reader, self.cache, tokens, unread, logits_for=LogitsFor.LAST).logits
        assert logits is not None
        return logits

    def score_nodes(self, forest: Tree, start: int) -> Tensor:
        if not self.vocab_map.same_ids:
            forest = replace(forest, tokens=self.vocab_map.draft_ids(forest.tokens))
        logits = self.reader(forest, self.cache, start=start).logits
        assert logits is not None
        return logits

    def finish(self, batch: Batch, grown: GrownTree) -> Tree:
        self.forest_index, self.proposed = grown.forest_index, (grown.tree.tokens, grown.tree.valid)
        return grown.tree

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, hidden: dict[int, Tensor]) -> None:
        """Commit the accepted nodes that it read: all but the last drafted token at most."""
        self._caught_up()
        if tree.chain:
            read = (outcome.num_committed - 1).clamp(0, tree.max_depth - 1)
            tokens, valid = self.proposed
            if tree.tokens is not tokens:  # others were verified: it has read its own, and commits those that agree
                read = torch.minimum(read, (valid & (tokens == tree.tokens))[:, 1:].cumprod(-1).sum(-1))
                self.lags = [max(lag, (tree.max_depth + 1) * self.max_pieces) for lag in self.lags]
            self.cache.commit(read)
            return
        slots = self.forest_index.gather(1, outcome.path.clamp(min=0))  # [B, d]
        accepted = torch.arange(tree.max_depth, device=batch.device) < outcome.num_committed[:, None] - 1
        committed = accepted & (outcome.path >= 0) & (slots >= 0)
        # If the root was read it lies before the forest: it is taken back, to be committed with its path.
        known = self.sequence.length(batch.length - outcome.num_committed)
        rooted = (outcome.num_committed > 0) & (self.cache.length == known)
        self.cache.truncate(self.cache.length - rooted.long())
        self.cache.commit(torch.where(rooted, 1 + committed.sum(-1), 0), torch.where(committed, slots + 1, -1))

    def rewind(self, length: Tensor) -> None:
        self.cache.truncate(torch.minimum(self.cache.length, length))

    def _num_unread(self, batch: Batch) -> Tensor:
        """Known tokens not yet read [B]; none for rows that are not drafted for and beyond the draft's context."""
        assert self.max_context is not None
        unread = self.num_known(batch).clamp(max=self.max_context) - self.cache.length
        return torch.where(self.reads, unread, 0)

    def _next(self, size: int) -> Tensor:
        """The next ``size`` tokens [B, size] after what the cache holds."""
        return self.sequence.at(self.cache.length[:, None] + torch.arange(size, device=self.cache.length.device))

    def _caught_up(self) -> None:
        self.lags = [lag if row in self.skipped else self.ordinary_lag for row, lag in enumerate(self.lags)]

    def _translated(self, admission: Admission) -> Admission:
        """``admission`` in the draft's tokens: prompts, negative prompts and the lengths of prefixes."""
        if self.vocab_map.same_ids:
            return admission
        spell, prefixes = self.vocab_map.spell, list[Prefix]()
        for request, prefix in zip(admission.requests, admission.prefixes, strict=True):
            prefixes.append(Prefix(row=prefix.row, length=len(spell(request.tokens[: prefix.length]))))
        return Admission(
            rows=admission.row_numbers,
            requests=[self._translated_request(request) for request in admission.requests],
            prefixes=prefixes,
            device=admission.rows.device,
        )

    def _translated_request(self, request: Request) -> Request:
        assert self.max_context is not None
        tokens, guidance = self.vocab_map.spell(request.tokens), request.guidance
        if guidance is None:
            return replace(request, tokens=tokens)
        negative = self.vocab_map.spell(guidance.prompt)
        # The row of a negative prompt grows with the request's own, and must not outgrow the cache.
        most = max(len(tokens), self.max_context - self.max_pieces * request.max_tokens)
        guidance = Guidance(scale=guidance.scale, prompt=negative[-most:], context=guidance.context)
        return replace(request, tokens=tokens, guidance=guidance)
