"""Staged drafting (2308.04623, the vertical cascade of 2312.11462): a draft model that a smaller drafter speeds up.

B rows, N nodes of an inner draft, D tokens of a chain, V the target's vocabulary.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.cache import View
from paceline.core.rejection import verify_by_rejection
from paceline.core.scores import Scores
from paceline.core.stats import StageStats, Stats
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, Outcome, Tree
from paceline.drafters.base import Drafter, DrafterContext, StatelessDrafter
from paceline.drafters.growing import DraftInput, GrowingDrafter
from paceline.drafters.stage_batch import StageBatch
from paceline.drafters.staged_lm import INNER_DRAWS, STAGED_DRAWS, StagedLM, staged_draws
from paceline.models.base import LM, PendingInputs

LONGEST_MODELLED = 3  # inner draft tokens by default, of an inner drafter that computes each of them


@final
class StagedDrafter(Drafter):
    """``draft``, a draft model's drafter, whose tokens are drafted by ``inner`` and verified by the draft model.

    Where the draft model picks with the target's own noise or greedily, it picks as it would alone and keeps the inner
    tokens that equal its picks; so the drafts are those of ``draft``, in fewer forwards of its model. Where it samples
    from its probabilities (``Draw.IID``), it verifies by rejection with noise of the stage's own: given the tokens
    before it, each token has the draft model's distribution whatever was drafted for it, and this is what verifiers
    know of it. ``inner`` may be staged too.

    ``num_inner_tokens`` (None: as many as are left of one without a model, else 3) is the longest inner draft.
    ``max_forwards`` (None: one per token on the CPU, where forwards of rows that are done cost nothing, and half as
    many elsewhere) bounds the draft model's forwards per step; a chain that is not complete by then stays shorter.
    Whether it goes on depends on the tokens that it has, never on those to come, so that it stays lossless.

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
        reads_tokens = draft.nests and draft.inputs == {DraftInput.EMBEDDING}
        if not reads_tokens or draft.branches or not draft.draws & STAGED_DRAWS:
            raise ValueError(
                f"{describe(draft)} cannot be drafted for: give a draft model that drafts chains of its own choices"
            )
        self.draws = staged_draws(draft.draws, inner.draws)
        if not inner.nests or inner.branches or not self.draws:
            raise ValueError(
                f"{describe(inner)} cannot draft for a draft model: give 'ngram', a smaller draft model, or either of "
                "them staged"
            )
        for name, value in (("num_inner_tokens", num_inner_tokens), ("max_forwards", max_forwards)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: give at least 1, or None")
        self.draft, self.inner = self.parts = draft, inner
        self.num_inner_tokens, self.max_forwards = num_inner_tokens, max_forwards
        self.origins, self.postpones = draft.origins, draft.postpones
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
        self.context, self._samples = context, context.draw is Draw.IID
        self._probs: Tensor | None = None  # [B, D, V] that the tokens of the chain were drawn from
        self.draft.start(context)
        if not self.draft.vocab_map.same_ids:
            raise ValueError("a draft model with token ids of its own cannot be staged: give it alone")
        depth = self._inner_depth(context.max_draft_tokens)
        self.stage = StageBatch(context, max_depth=depth)
        self.stats = Stats(context.rows, depth, context.device, context.ops)
        self._read = torch.ones_like(self.stage.start)  # [B] tokens that the draft model has read
        self._halves = self.max_forwards is None and context.device.type != "cpu"
        wants = INNER_DRAWS[context.draw]
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
        """Prepare both; the inner drafter stands by while a row is guided, and where a pick is the draft's only token.

        Samples do not depend on neighbours: where rows may be guided it takes no part in them.
        """
        self.draft.begin_step(batch, plan)
        depth, guidance = self._inner_depth(plan.num_draft_tokens), self.context.guidance
        self._drafts_inner = depth > 0 and (guidance is None or not (guidance.any or self._samples))
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
        self._probs = None
        tree = self.draft.propose(batch, plan)
        return tree if self._probs is None else replace(tree, probs=self._probs[:, : tree.max_depth])

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
        """The longest inner draft where the chain has ``num_draft_tokens``.

        The last token of picks is the draft model's own. Samples depend on how long inner drafts are, so there a row's
        own room alone bounds them, and not that of the deepest row.
        """
        most = self.num_inner_tokens or (
            num_draft_tokens if isinstance(self.inner, StatelessDrafter) else LONGEST_MODELLED
        )
        return max(0, min(most, num_draft_tokens - (not self._samples)))

    def _num_forwards(self, num_draft_tokens: int) -> int:
        if self._halves:
            return (num_draft_tokens + 1) // 2
        return min(self.max_forwards or num_draft_tokens, num_draft_tokens)

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
            outcome = self._sample(inner, logits, depth) if self._samples else _pick(own, inner, logits, greedy=greedy)
            outcome = own.extend(inner, outcome, Scores.of(logits))
            view.commit(outcome.num_committed if first is None else outcome.num_committed + first.count.clamp(min=0))
            self.stats.record(inner, outcome)
            self.inner.observe(own, inner, outcome, {})
            stage.rest()
            if self._halves and self._samples:  # as many forwards as the row would have alone
                own.active.logical_and_(number + 1 < (stage.room + 1) // 2)
        # The newest token of a chain is not read; a row without one has read its root.
        self._read = stage.start + (stage.num_gained - 1).clamp(min=0)
        found, there = stage.gained(depth)
        tokens[:, 1:] = torch.where(there, found, 0)
        valid[:, 1:] &= there
        return True

    def _sample(self, inner: Tree, logits: Tensor, depth: int) -> Outcome:
        """Verify ``inner`` by the draft model's ``logits`` [B, N, V], and keep the probabilities of its tokens."""
        own, gained = self.stage.batch, self.stage.num_gained
        probs = own.warp(logits).softmax(-1)
        if self._probs is None:  # a token more, for those that are left over
            self._probs = probs.new_zeros(len(probs), depth + 1, probs.shape[-1])
        outcome = verify_by_rejection(inner, probs, own)
        index = torch.arange(inner.num_nodes, device=probs.device)
        drawn = (index < outcome.num_committed[:, None]) & own.active[:, None]
        at = torch.where(drawn, gained[:, None] + index, depth).clamp(max=depth)
        self._probs.scatter_(1, at[..., None].expand_as(probs), probs)
        return outcome

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


def _pick(own: Batch, inner: Tree, logits: Tensor, *, greedy: bool) -> Outcome:
    """Verify ``inner`` by the draft model's own picks, from its ``logits`` [B, N, V]."""
    return own.match(inner, own.argmax(logits) if greedy else own.picks(inner, logits))


def describe(drafter: Drafter) -> str:
    """What ``drafter`` is, for messages."""
    return f"a drafter {'+'.join(drafter.origins)!r} ({type(drafter).__name__})"
