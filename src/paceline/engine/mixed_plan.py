"""The plan of copies beside a draft model or head: in each row and step the drafter that promises most."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, final

from paceline.core.host_draft import HostDraft
from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.core.step import StepPlan, StepResult
from paceline.engine.candidates import CandidatePlan
from paceline.engine.controller import Controller
from paceline.engine.copies import CopyChoice
from paceline.engine.copy_plans import CopyPlan
from paceline.engine.costs import DepthCost
from paceline.engine.row_state import RowState
from paceline.engine.watch import Speed


@final
class MixedPlan(Plan):
    """Copies where they promise more than ``others``, which plan for the other drafters of CandidateDrafters.

    Copies are its first drafter. Those of the others that ``joins`` says so of, in their order, may draft for some rows
    while others copy. The costs of a target's forward are the same for both, so both learn them. ``origins`` are those
    of the other drafters, by which requests choose (None: they do not).
    """

    def __init__(
        self,
        *,
        copies: CopyPlan,
        others: Controller | CandidatePlan,
        joins: Sequence[bool] = (),
        origins: Collection[int] | None = None,
    ) -> None:
        self.copies, self.others, self._joins, self._origins = copies, others, tuple(joins), origins

    @property
    def max_draft_tokens(self) -> int:
        return max(self.copies.max_draft_tokens, self.others.max_draft_tokens)

    @property
    def drafts_at_once(self) -> bool:
        return self.others.drafts_at_once

    @property
    def speed(self) -> Speed | None:
        """That of the plan with the most steps."""
        return self.copies.speed or self.others.speed

    def costs(self) -> tuple[DepthCost, ...]:
        """What steps with the other drafters cost and promise."""
        return self.others.costs()

    def drafts_for(
        self, rows: Sequence[int], requests: Sequence[Request], *, reread: int = 0, unread: int = 0, waiting: int = 0
    ) -> bool:
        """Whether the other drafter, if it is one, may draft for them; copies always may."""
        ready = {"reread": reread, "unread": unread, "waiting": waiting}
        return self.others.drafts_for(rows, self._by_others(requests), **ready)

    def give_up(self) -> Collection[int]:
        """Those of the other drafter, if it is one."""
        return self.others.give_up()

    def observe_prefill(self, num_tokens: int, seconds: float) -> None:
        """What the other drafter took."""
        self.others.observe_prefill(num_tokens, seconds)

    def admit(self, rows: Sequence[int], requests: Sequence[Request], *, waiting: int = 0) -> None:
        """New requests."""
        self.copies.admit(rows, requests)
        self.others.admit(rows, self._by_others(requests), waiting=waiting)

    def _by_others(self, requests: Sequence[Request]) -> Sequence[Request]:
        return requests if self._origins is None else [one.drafted_by(self._origins) for one in requests]

    def release(self, rows: Iterable[int]) -> None:
        """Requests that ended."""
        rows = list(rows)
        self.copies.release(rows)
        self.others.release(rows)

    @property
    def considers(self) -> bool:
        return self.copies.considers

    def consider(self, offers: Mapping[int, Sequence[HostDraft]]) -> None:
        """What may be copied in the next step."""
        self.copies.consider(offers)

    def __call__(self) -> StepPlan:
        """The shape of the step that promises most, and its drafter."""
        copies = self.copies.choose()
        number = self.others.chosen if isinstance(self.others, CandidatePlan) else 0
        joins = number < len(self._joins) and self._joins[number] and len(copies.drafts) < self.copies.num_running
        if copies.drafts and not joins and copies.speedup > self.others.outlook:
            return self.copies.plan_for(copies)
        plan = self.others()
        others = replace(plan, drafter=plan.drafter + 1)
        if not copies.drafts or not joins or plan.explored or plan.drafter != number:
            return others
        if not plan.num_draft_tokens:
            return self.copies.plan_for(copies)
        beside, better = self._beside(plan, copies)
        outlook = self.others.outlook
        if copies.speedup > outlook * max(1.0, better):
            return self.copies.plan_for(copies)
        return others if beside is None or better <= 1.0 else beside

    def _beside(self, plan: StepPlan, copies: CopyChoice) -> tuple[StepPlan | None, float]:
        """The step of ``plan`` in which rows copy whose copies promise more than its drafts, and how many times better
        it is; None if no row does, or all.
        """
        others = self.others.controllers[plan.drafter] if isinstance(self.others, CandidatePlan) else self.others
        drafts = {row: _RowDraft.of(state, plan.depth_of(row), others.num_nodes) for row, state in others.rows.items()}
        copied = {
            row: tokens for row, tokens in copies.promised.items() if row in drafts and tokens >= drafts[row].tokens
        }
        depths = [0 if row in copied else plan.depth_of(row) for row in range(self.copies.size)]
        kept = {row: draft for row, draft in drafts.items() if row not in copied}
        deepest = max((draft.depth for draft in kept.values()), default=0)
        if not copied or not deepest:
            return None, 1.0
        chosen = {row: copies.drafts[row] for row in copied}
        before, after = self._goodput(drafts, {}, 0), self._goodput(kept, copied, sum(map(_length, chosen.values())))
        beside = replace(
            plan,
            num_draft_tokens=deepest,
            depths=tuple(depths),
            copies=chosen,
            drafter=plan.drafter + 1,
            num_copied=self.copies.depth_for(chosen.values()),
        )
        return beside, after / before

    def _goodput(self, drafts: "Mapping[int, _RowDraft]", copied: Mapping[int, float], num_copied: int) -> float:
        """Expected tokens over cost of a step with ``drafts`` and copies of ``num_copied`` tokens."""
        running = len(drafts) + len(copied)
        tokens = running + sum(draft.tokens for draft in drafts.values()) + sum(copied.values())
        nodes = running + sum(draft.nodes for draft in drafts.values()) + num_copied
        depths = [draft.depth for draft in drafts.values()]
        return tokens / self.copies.knowledge.costs.of(running, nodes, max(depths), sum(depths))

    def observe(self, result: StepResult) -> None:
        """To the one that planned the step; the others learn what they can."""
        if result.plan.copies is not None and not result.plan.num_copied:
            self.copies.observe(result)
            self.others.stand_by(result)
        else:
            if not result.plan.num_draft_tokens:
                self.copies.note_drafting(result)
            self.copies.learn(result)
            self.others.observe(replace(result, plan=replace(result.plan, drafter=result.plan.drafter - 1)))


class _RowDraft(NamedTuple):
    """What is expected of the draft of one row."""

    tokens: float  # accepted
    nodes: float
    depth: int

    @classmethod
    def of(cls, state: RowState, depth: int, num_nodes: Sequence[int]) -> "_RowDraft":
        """Of a draft ``depth`` tokens deep, whose nodes ``num_nodes`` gives."""
        depth = min(depth, state.most)
        return cls(state.offers * sum(state.survival[:depth]), state.offers * num_nodes[depth], depth)


def _length(draft: HostDraft) -> int:
    return len(draft.tokens)
