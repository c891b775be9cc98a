"""Horizontal cascade (2312.11462): the better drafter drafts a chain's first tokens, a cheaper one goes on from there.

B rows, D tokens of a chain, F of them by the first drafter at most.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.stats import StageStats, Stats
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, Outcome, Tree
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.stage_batch import StageBatch

DRAWS = frozenset({Draw.SHARED, Draw.FIXED, Draw.IID})  # draws that need one sample of each distribution


@final
class CascadeDrafter(Drafter):
    """Chains whose first ``num_first`` tokens are ``first``'s; ``rest`` drafts the others after them.

    Where ``first`` has fewer, ``rest`` goes on after those. More drafters in a row are a cascade as ``rest``. Raises
    ValueError for ``num_first`` below 1, and for drafters that cannot take part.
    """

    accepts_other_tokens = True

    def __init__(self, *, first: Drafter, rest: Drafter, num_first: int) -> None:
        if num_first < 1:
            raise ValueError(f"num_first={num_first}: give at least 1")
        for one, fits in ((first, not first.taps), (rest, rest.nests)):
            if not fits or one.branches or not one.draws & DRAWS:
                raise ValueError(
                    f"a drafter {'+'.join(one.origins)!r} ({type(one).__name__}) cannot take part in a cascade: give "
                    "'ngram', a draft model, or a staged one"
                )
        self.first, self.rest = self.parts = first, rest
        self.num_first = num_first
        self.draws = (first.draws | rest.draws) & DRAWS
        self.origins = (*first.origins, *rest.origins)
        self.nests, self.on_host = first.nests, first.on_host
        self.num_search_nodes = max(first.num_search_nodes, rest.num_search_nodes)
        self.num_extra_rows = first.num_extra_rows + rest.num_extra_rows
        self.needs_same_tokens = first.needs_same_tokens or rest.needs_same_tokens
        self.postpones = first.postpones and rest.postpones
        self._goes_on = False  # whether the second drafter takes part in the step

    @property
    def slot_bytes(self) -> int:
        return self.first.slot_bytes + self.rest.slot_bytes

    @property
    def stages(self) -> tuple[StageStats, ...]:
        own = [
            StageStats(name="+".join(one.origins), stats=stats, drafts_for_target=True)
            for one, stats in ((self.first, self.first_stats), (self.rest, self.rest_stats))
        ]
        return own[0], *self.first.stages, own[1], *self.rest.stages

    @property
    def host_state(self) -> Hashable:
        states = self.first.host_state, self.rest.host_state
        return None if None in states else (self._goes_on, *states)

    def resume(self, host_state: Hashable) -> None:
        """Give each its own state."""
        assert isinstance(host_state, tuple)
        self._goes_on, first, rest = host_state
        self.first.resume(first)
        if self._goes_on:
            self.rest.resume(rest)

    def start(self, context: DrafterContext) -> None:
        """Start both, each with the draw that the verifier likes best of its own. Raises what they raise."""
        most = context.max_draft_tokens
        first, rest = min(self.num_first, most), max(0, most - self.num_first)
        wants = tuple(draw for draw in context.wants if draw in DRAWS) or (context.draw,)
        for one, depth, lag in ((self.first, first, rest), (self.rest, rest, first)):
            draw = next((draw for draw in wants if draw in one.draws), None)
            if draw is None:
                raise ValueError(
                    f"{'+'.join(one.origins)!r} drafts no tokens that are {' or '.join(draw.words for draw in wants)}, "
                    "as the verifier wants them: leave it out of the cascade, or give the verifier 'coupled'"
                )
            one.start(replace(context, max_draft_tokens=depth, draw=draw, wants=wants, lag=context.lag + lag))
        self.stage = StageBatch(context, max_depth=rest)
        self.first_stats, self.rest_stats = (
            Stats(context.rows, depth, context.device, context.ops) for depth in (first, rest)
        )
        self._index = torch.arange(most + 1, device=context.device)  # [D + 1]

    def begin_step(self, batch: Batch, plan: StepPlan) -> None:
        """Prepare those that draft."""
        most, own = plan.num_draft_tokens, StepPlan(0, plan.depths, searches=plan.searches)
        self.first.begin_step(batch, replace(own, num_draft_tokens=min(self.num_first, most)))
        self._goes_on = most > self.num_first
        if self._goes_on or not most:
            self.rest.begin_step(self.stage.batch, replace(own, num_draft_tokens=max(0, most - self.num_first)))
        else:
            self.rest.stand_by(self.stage.batch, 1 + most)

    def stand_by(self, batch: Batch, num_tokens: int) -> None:
        self.first.stand_by(batch, num_tokens)
        self.rest.stand_by(self.stage.batch, num_tokens)

    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Both read the prompts."""
        self._admit(admission)
        self.first.prefill(batch, admission, {})
        self.rest.prefill(self.stage.batch, admission, {})

    def postpone(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Both read the prompts later, or now."""
        self._admit(admission)
        self.first.postpone(batch, admission, {})
        self.rest.postpone(self.stage.batch, admission, {})

    def release(self, batch: Batch, rows: Sequence[int]) -> None:
        self.first.release(batch, rows)
        self.rest.release(self.stage.batch, rows)
        self.stage.release(rows)

    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """The first drafter's chain, and after it that of the second [B, D + 1]."""
        depth = plan.num_draft_tokens
        first = self.first.propose(batch, StepPlan(min(self.num_first, depth), plan.depths))
        self._first = self._proposed = first
        self._num_first = first.valid[:, 1:].sum(-1)  # [B]
        if not self._goes_on:
            return first
        stage = self.stage
        # One token of room more than there is, so that the second drafter reads what the first one drafted.
        stage.begin(batch, torch.where(batch.active, batch.draft_room, 0), spare=2)
        stage.append(first.tokens[:, 1:], self._num_first)
        self._rest = rest = self.rest.propose(stage.batch, StepPlan(depth - self.num_first, plan.depths))
        stage.append(rest.tokens[:, 1:], rest.valid[:, 1:].sum(-1))
        tokens, there = stage.gained(depth)
        index = self._index[: depth + 1]
        of_rest = index > self._num_first[:, None]
        before = index.clamp(max=first.max_depth).expand(len(tokens), -1)
        after = (index - self._num_first[:, None]).clamp(0, rest.max_depth)
        tree = Tree.make_chain(
            torch.cat((batch.root[:, None], torch.where(there, tokens, 0)), dim=1),
            torch.cat((batch.active[:, None], there & batch.active[:, None]), dim=1),
            no_draft_reason=first.no_draft_reason,
        )
        of_first = first.origin.gather(1, before), first.draw.gather(1, before)
        of_second = rest.origin.gather(1, after) + len(self.first.origins), rest.draw.gather(1, after)
        origin, draw = (torch.where(of_rest, two, one) for one, two in zip(of_first, of_second, strict=True))
        source, probs = _distributions(first, rest, before, after, of_rest)
        self._proposed = replace(tree, origin=origin, draw=draw, source=source, probs=probs)
        return self._proposed

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, hidden: dict[int, Tensor]) -> None:
        """Tell each what became of its part, and rewind the second one to the tokens that were accepted."""
        num, first = outcome.num_committed, self._first
        if tree.tokens is not self._proposed.tokens:  # others were verified
            nodes = first.num_nodes
            first = replace(first, tokens=tree.tokens[:, :nodes], valid=tree.valid[:, :nodes])
        of_first = Outcome(
            path=outcome.path[:, : first.max_depth],
            num_committed=torch.minimum(num, self._num_first + 1),
            next=outcome.next,
        )
        self.first_stats.record(first, of_first)
        self.first.observe(batch, first, of_first, {})
        if not self._goes_on:
            return
        rest, index = self._rest, self._index[1 : self._rest.num_nodes]
        num = (num - self._num_first).clamp(min=0)
        accepted = ((outcome.path >= 0).sum(-1) - self._num_first)[:, None]
        of_rest = Outcome(path=torch.where(index <= accepted, index, -1), num_committed=num, next=outcome.next)
        self.rest_stats.record(replace(rest, valid=rest.valid & (num > 0)[:, None]), of_rest)
        self.rest.observe(self.stage.batch, rest, of_rest, {})
        self.rest.rewind(self.stage.settle(batch))

    def rewind(self, length: Tensor) -> None:
        self.first.rewind(length)
        self.stage.rewind(length)
        self.rest.rewind(length)

    def _admit(self, admission: Admission) -> None:
        self.stage.admit(admission)
        for stats in (self.first_stats, self.rest_stats):
            stats.reset(admission.rows)


def _distributions(
    first: Tree, rest: Tree, before: Tensor, after: Tensor, of_rest: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Which distribution each node of a cascade was drawn from [B, N], and these [B, M, V]: those of both parts.

    Node n is node ``after`` [B, N] of ``rest`` where ``of_rest``, and else node ``before`` of ``first``.
    """
    known = [tree.probs for tree in (first, rest) if tree.probs is not None]
    num_first = 0 if first.probs is None else first.probs.shape[1]
    second = rest.source.gather(1, after)
    second = torch.where(second >= 0, second + num_first, second)
    return torch.where(of_rest, second, first.source.gather(1, before)), torch.cat(known, dim=1) if known else None
