"""Staged drafting (2308.04623, the vertical cascade of 2312.11462): a draft model that a smaller drafter speeds up.

B rows, N nodes of an inner draft, D tokens of a chain, V the target's vocabulary.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Protocol, final

import torch
from torch import Tensor

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.cache import View
from paceline.core.scores import Scores
from paceline.core.stats import StageStats, Stats
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, Outcome, Resume, Tree, follow
from paceline.drafters.base import Drafter, DrafterContext, StatelessDrafter
from paceline.drafters.growing import DraftInput, GrowingDrafter
from paceline.drafters.stage_batch import StageBatch
from paceline.models.base import LM, FusedDrafting, LogitsFor, Output, PendingInputs, SharedLayers
from paceline.models.wrapped import WrappedLM

DRAWS = frozenset({Draw.SHARED, Draw.FIXED})  # draws whose tokens are the draft model's own picks
LONGEST_MODELLED = 3  # inner draft tokens by default, of an inner drafter that computes each of them


class ChainDrafting(Protocol):
    """As models/base.FusedDrafting.draft_fused, by ``lm``."""

    def __call__(
        self, lm: LM, batch: Batch, cache: View, pending: PendingInputs, tokens: Tensor, valid: Tensor, *, greedy: bool
    ) -> bool: ...


@final
class StagedLM(WrappedLM[LM], FusedDrafting):
    """``lm``, whose chains ``draft_chain`` drafts."""

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
    ) -> Output:
        """As ``lm``."""
        return self.lm(tree, cache, start=start, taps=taps, logits_for=logits_for, resume=resume)

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


@final
class StagedDrafter(Drafter):
    """``draft``, a draft model's drafter, whose tokens are drafted by ``inner`` and verified by the draft model.

    The draft model picks as it would alone, with the target's own noise or greedily, and keeps the inner tokens that
    equal its picks; so the drafts are those of ``draft``, in fewer forwards of its model. ``inner`` may be staged too.

    ``num_inner_tokens`` (None: as many as are left of one without a model, else 3) is the longest inner draft.
    ``max_forwards`` (None: one per token on the CPU, where forwards of rows that are done cost nothing, and half as
    many elsewhere) bounds the draft model's forwards per step; a chain that is not complete by then stays shorter.

    Raises ValueError for a ``draft`` that is no draft model with chains, and for an ``inner`` that cannot draft for it.
    """

    accepts_other_tokens = True
    nests = True

    def __init__(
        self,
        *,
        draft: GrowingDrafter,
        inner: Drafter,
        num_inner_tokens: int | None = None,
        max_forwards: int | None = None,
    ) -> None:
        if not draft.nests or draft.inputs != {DraftInput.EMBEDDING} or draft.branches or not draft.draws & DRAWS:
            raise ValueError(
                f"{describe(draft)} cannot be drafted for: give a draft model that drafts chains of its own choices"
            )
        if not inner.nests or inner.branches or not inner.draws & DRAWS:
            raise ValueError(
                f"{describe(inner)} cannot draft for a draft model: give 'ngram', a smaller draft model, or either of "
                "them staged"
            )
        for name, value in (("num_inner_tokens", num_inner_tokens), ("max_forwards", max_forwards)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: give at least 1, or None")
        self.draft, self.inner = self.parts = draft, inner
        self.num_inner_tokens, self.max_forwards = num_inner_tokens, max_forwards
        self.draws, self.origins, self.postpones = draft.draws & DRAWS, draft.origins, draft.postpones
        draft.lm = StagedLM(draft.lm, self._draft_chain)
        self._drafts_inner = False  # whether the inner drafter takes part in the step

    @property
    def slot_bytes(self) -> int:
        return self.draft.slot_bytes + self.inner.slot_bytes

    @property
    def stages(self) -> tuple[StageStats, ...]:
        return StageStats(name="+".join(self.inner.origins), stats=self.stats), *self.inner.stages

    @property
    def host_state(self) -> Hashable:
        states = self.draft.host_state, self.inner.host_state
        return None if None in states else (self._drafts_inner, *states)

    def resume(self, host_state: Hashable) -> None:
        """Give each its own state."""
        assert isinstance(host_state, tuple)
        self._drafts_inner, draft, inner = host_state
        self.draft.resume(draft)
        if self._drafts_inner:
            self.inner.resume(inner)

    def max_nodes(self, num_draft_tokens: int) -> int:
        return self.draft.max_nodes(num_draft_tokens)

    def start(self, context: DrafterContext) -> None:
        """Start both. Raises what they raise, and ValueError for a draft model with a vocabulary of its own."""
        self.context = context
        self.draft.start(context)
        if not self.draft.vocab_map.same_ids:
            raise ValueError("a draft model with token ids of its own cannot be staged: give it alone")
        depth = self._inner_depth(context.max_draft_tokens)
        self.stage = StageBatch(context, max_depth=depth)
        self.stats = Stats(context.rows, depth, context.device, context.ops)
        self._read = torch.ones_like(self.stage.start)  # [B] tokens that the draft model has read
        wants = (Draw.FIXED, Draw.SHARED) if context.draw is Draw.FIXED else (Draw.SHARED, Draw.FIXED)
        self.inner.start(
            replace(
                context,
                max_draft_tokens=depth,
                draw=next(draw for draw in wants if draw in self.inner.draws),
                wants=wants,
                target=self.draft.lm,
                guidance=None,
                lag=context.lag + 1,
            )
        )

    def begin_step(self, batch: Batch, plan: StepPlan) -> None:
        """Prepare both; the inner drafter stands by while a row is guided, and where a draft has one token."""
        self.draft.begin_step(batch, plan)
        depth, guidance = self._inner_depth(plan.num_draft_tokens), self.context.guidance
        self._drafts_inner = depth > 0 and (guidance is None or not guidance.any)
        if self._drafts_inner or not plan.num_draft_tokens:
            self.inner.begin_step(self.stage.batch, StepPlan(depth, plan.depths))
        else:
            self.inner.stand_by(self.stage.batch, 1 + plan.num_draft_tokens)

    def stand_by(self, batch: Batch, num_tokens: int) -> None:
        self.draft.stand_by(batch, num_tokens)
        self.inner.stand_by(self.stage.batch, num_tokens)

    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Both read the prompts."""
        self._admit(admission)
        self.draft.prefill(batch, admission, {})
        self.inner.prefill(self.stage.batch, admission, {})

    def postpone(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Both read the prompts later, or now."""
        self._admit(admission)
        self.draft.postpone(batch, admission, {})
        self.inner.postpone(self.stage.batch, admission, {})

    def release(self, batch: Batch, rows: Sequence[int]) -> None:
        self.draft.release(batch, rows)
        self.inner.release(self.stage.batch, rows)
        self.stage.release(rows)

    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """The draft model's chain."""
        return self.draft.propose(batch, plan)

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, hidden: dict[int, Tensor]) -> None:
        """Tell the draft model, and rewind all stages to the tokens that were accepted."""
        self.draft.observe(batch, tree, outcome, hidden)
        if self._drafts_inner:
            self.draft.rewind(self._read)
            self.inner.rewind(self.stage.settle(batch))

    def rewind(self, length: Tensor) -> None:
        self.draft.rewind(length)
        self.stage.rewind(length)
        self.inner.rewind(length)

    def _admit(self, admission: Admission) -> None:
        self.stage.admit(admission)
        self.stats.reset(admission.rows)

    def _inner_depth(self, num_draft_tokens: int) -> int:
        """The longest inner draft where the chain has ``num_draft_tokens``: its last token is the draft model's own."""
        most = self.num_inner_tokens or (
            num_draft_tokens if isinstance(self.inner, StatelessDrafter) else LONGEST_MODELLED
        )
        return max(0, min(most, num_draft_tokens - 1))

    def _num_forwards(self, num_draft_tokens: int) -> int:
        most = self.max_forwards
        if most is None:
            most = num_draft_tokens if self.context.device.type == "cpu" else (num_draft_tokens + 1) // 2
        return min(most, num_draft_tokens)

    def _draft_chain(
        self, lm: LM, batch: Batch, cache: View, pending: PendingInputs, tokens: Tensor, valid: Tensor, *, greedy: bool
    ) -> bool:
        """See models/base.FusedDrafting."""
        if not self._drafts_inner:
            return False
        depth = tokens.shape[1] - 1
        plan, stage, own = StepPlan(self._inner_depth(depth)), self.stage, self.stage.batch
        stage.begin(batch, valid[:, 1:].sum(-1))
        view = cache.apart()  # the draft drafter commits what is accepted
        for number in range(self._num_forwards(depth)):
            if number and own.idle:
                break
            inner = self.inner.propose(own, plan)
            first = pending if number == 0 else None
            logits = self.draft.vocab_map.target_logits(self._score(lm, inner, view, own, first))
            logits = own.process_tree(logits, inner)
            picks = own.argmax(logits) if greedy else own.picks(inner, logits)
            leaf, path, length = follow(inner, inner.tokens == picks.gather(1, inner.parents.clamp(min=0)))
            outcome = Outcome(path=path, num_committed=length + 1, next=picks.gather(1, leaf[:, None])[:, 0])
            outcome = own.extend(inner, outcome, Scores.of(logits))
            view.commit(outcome.num_committed if first is None else outcome.num_committed + first.count.clamp(min=0))
            self.stats.record(inner, outcome)
            self.inner.observe(own, inner, outcome, {})
            stage.rest()
        # The newest token of a chain is not read; a row without one has read its root.
        self._read = stage.start + (stage.num_gained - 1).clamp(min=0)
        found, there = stage.gained(depth)
        tokens[:, 1:] = torch.where(there, found, 0)
        valid[:, 1:] &= there
        return True

    def _score(self, lm: LM, inner: Tree, view: View, own: Batch, pending: PendingInputs | None) -> Tensor:
        """Draft logits [B, N, D] at the nodes of ``inner``, after reading the ``pending`` tokens before its root."""
        draft_ids = self.draft.vocab_map.draft_ids
        if pending is None:
            logits = lm(replace(inner, tokens=draft_ids(inner.tokens)), view).logits
            assert logits is not None
            return logits
        rows, nodes = inner.tokens.shape
        index = torch.arange(pending.max_count + nodes, device=own.device)
        shift = pending.count.clamp(min=0)[:, None]  # [B, 1] pending tokens, which come before the root
        node = index - shift
        within = node.clamp(0, nodes - 1)
        known = own.tokens.gather(1, (view.length[:, None] + index).clamp(max=own.max_length))
        read = torch.where(node <= 0, known, inner.tokens.gather(1, within))
        drafted = inner.valid.gather(1, within) & (node > 0) & (node < nodes)
        valid = drafted | ((node <= 0) & (pending.count >= 0)[:, None])
        logits = lm(Tree.make_chain(draft_ids(read), valid), view).logits
        assert logits is not None
        at = shift + torch.arange(nodes, device=own.device)
        return logits.gather(1, at[..., None].expand(rows, nodes, logits.shape[-1]))


def describe(drafter: Drafter) -> str:
    """What ``drafter`` is, for messages."""
    return f"a drafter {'+'.join(drafter.origins)!r} ({type(drafter).__name__})"
