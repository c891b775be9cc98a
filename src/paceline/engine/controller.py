"""Decides how much to draft in every step and row, so that drafting gains as much as it can and never costs much.

The controller maximises goodput (2406.14066): expected new tokens of all rows over the expected seconds of the step.
It learns costs from timed steps (engine/costs) and gains from what was accepted (engine/acceptance), and looks at
results of earlier steps alone, so every lossless verifier stays exact.

Where drafting does not pay it is off, and the drafter is not called. A row then *probes* (engine/probes): it drafts a
token now and then, and more at once where that was accepted, so drafting resumes quickly. Probes are paid from a
budget, which bounds what a useless drafter costs.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import final

from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.core.step import StepPlan, StepResult
from paceline.core.tree import NoDraft
from paceline.engine.costs import DepthCost
from paceline.engine.exploration import plain_is_due
from paceline.engine.goodput import Choice, Goodput
from paceline.engine.knowledge import MAX_DRAFT_TOKENS, Knowledge
from paceline.engine.learning import StepLearner
from paceline.engine.planning import make_plan
from paceline.engine.probes import Probes
from paceline.engine.row_state import RowState
from paceline.engine.watch import Speed

WARM_UP = 4  # plain steps after a draft, of which the last one tells the cost
SETTLED, SETTLED_ROW = 8, 2  # drafted steps between two decisions; the same for each row, if that is more
PATIENCE = 4  # the same while rows are new
KNOWN = 64  # timed steps after which costs are known well enough for that
GIVE_UP = 16  # steps after which several rows of the same requests that are not drafted for are given up
PLAIN_RUN = 4  # plain steps that count as one, because they teach little, and are looked at together
IDLE_RUN = 16  # the same where drafting is off
PLAIN_PLAN = StepPlan(0, off=NoDraft.SLOWER, searches=False)
REFRESH = 16  # steps after which what was learnt is looked up again


@final
class Controller(Plan):
    """Plans the steps of ``rows`` rows; drafts are at most ``max_draft_tokens`` deep.

    ``num_nodes`` (None: chains) are the nodes of a draft by its depth, from 0, ``num_unverified`` of them whatever is
    drafted. ``knowledge`` (None: nothing) is where it starts from and what it adds to. With ``ends_early`` chains end
    where the draft's own confidence says that the next token does not pay; with ``postpones`` the drafter may read
    prompts later. A drafter that searches reads ``num_search_nodes`` for it (engine/search_budget). Without ``timed``
    no clock and no other row matters, and there is no search. Raises ValueError below 1 draft token.
    """

    def __init__(
        self,
        *,
        rows: int,
        max_draft_tokens: int = MAX_DRAFT_TOKENS,
        num_nodes: Sequence[int] | None = None,
        num_unverified: int = 0,
        knowledge: Knowledge | None = None,
        ends_early: bool = False,
        postpones: bool = False,
        num_search_nodes: int = 0,
        timed: bool = True,
    ) -> None:
        if max_draft_tokens < 1:
            raise ValueError(f"max_draft_tokens={max_draft_tokens}: give at least 1; 0 is plain decoding")
        self._max = max_draft_tokens
        self.num_nodes = list(num_nodes) if num_nodes is not None else list(range(max_draft_tokens + 1))
        self.knowledge = knowledge or Knowledge(max_draft_tokens=max_draft_tokens)
        self._goodput = Goodput(self.knowledge, self.num_nodes, num_unverified=num_unverified, ends_early=ends_early)
        self._size, self._timed, self._running = rows, timed, 1
        self._postpones, self._drafts_at_once = postpones and timed, True
        self._ends_early = ends_early
        self._pool = self.knowledge.greedy  # of the newest request
        self.rows: dict[int, RowState] = {}
        self._plain: set[int] = set()  # rows whose requests have no drafts
        self._stale = True  # whether there is something to decide
        self._evaluate_at = self._refresh_at = self._changed_at = 0  # steps; changed: the rows
        self._choice: Choice | None = None  # what the rows' depths are chosen by
        self._probes = self.knowledge.probes if timed else Probes(bounded=False)
        self._planning = 0.0  # seconds that the next drafted step was planned for
        self._pending: list[StepResult] = []  # that nothing was learnt from
        self._look = 1  # of so many
        # Whether rows begin plain where that is better, and whether all that run may be given up.
        self._readies = self._hopeless = False
        self._plan = PLAIN_PLAN
        self._learner = StepLearner(
            self.knowledge, self._probes, num_unverified=num_unverified, levels=ends_early, timed=timed
        )
        if num_search_nodes and timed:
            self._probes.search.open(self.knowledge.costs.of(1, num_search_nodes))

    @property
    def max_draft_tokens(self) -> int:
        return self._max

    def drafts_for(
        self, rows: Sequence[int], requests: Sequence[Request], *, reread: int = 0, unread: int = 0, waiting: int = 0
    ) -> bool:
        """Whether drafting promises to pay for them, or they are to teach whether it does (engine/readiness).

        Where prompts may be read later, ``admit`` finds that out itself.
        """
        self._learn()
        self.knowledge.refresh()
        return self._keep_ready(rows, requests, reread=reread, unread=unread, waiting=waiting)

    def _keep_ready(
        self, rows: Sequence[int], requests: Sequence[Request], *, reread: int, unread: int, waiting: int
    ) -> bool:
        self._plain.difference_update(rows)
        new = {row: self._new_row(row, request) for row, request in zip(rows, requests, strict=True)}
        drafts = any(state.most for state in new.values())
        self._readies = self._timed
        if drafts and self._timed:
            drafts = self._goodput.keeps_ready(new, self.rows, reread=reread, unread=unread, waiting=waiting)
        self._plain.update(() if drafts else rows)
        return drafts

    def _new_row(self, row: int, request: Request) -> RowState:
        pool = self.knowledge.sampled if request.sampling.temperature else self.knowledge.greedy
        state = RowState.of(request, pool=pool, max_depth=self._max, plain=row in self._plain)
        state.missed = len(request.tokens) - 1 if self._postpones else 0
        return state

    def give_up(self) -> Collection[int]:
        """All of several rows for which drafting was off for a while: keeping them ready costs more than the chance is
        worth that it pays later.
        """
        if not self._hopeless:
            return ()
        self._hopeless = False
        for state in self.rows.values():
            state.give_up()
        self._plain.update(self.rows)
        return tuple(self.rows)

    def observe_prefill(self, num_tokens: int, seconds: float) -> None:
        """A draft head has read prompts."""
        if self._timed:
            self.knowledge.costs.observe_prefill(num_tokens, seconds)

    def admit(self, rows: Sequence[int], requests: Sequence[Request], *, waiting: int = 0) -> None:
        """New requests: nothing is known of them but what the others were like."""
        self._learn()
        self.knowledge.refresh()
        if self._postpones:
            self._plain.difference_update(rows)
            if len(self.rows.keys() | set(rows)) + waiting > 1:  # one row that is ready costs a draft model nothing
                self._keep_ready(rows, requests, reread=0, unread=0, waiting=waiting)
        self._goodput.refills.begin(len(rows), waiting=waiting if self._timed else 0)
        for row, request in zip(rows, requests, strict=True):
            state = self.rows[row] = self._new_row(row, request)
            self._pool = state.pool
        if self._postpones:
            begins = not self._goodput.refills.gathering and self._goodput.best(self.rows).depths.keys() & set(rows)
            self._drafts_at_once = bool(begins or self._goodput.lesson(self.rows))
        for row in rows if self._drafts_at_once else ():
            self.rows[row].missed = 0
        self._probes.grant(self._goodput.first_probes(self.rows, len({*rows} - self._plain)))
        self._stale, self._evaluate_at, self._changed_at = True, self._learner.steps, self._learner.steps

    @property
    def drafts_at_once(self) -> bool:
        return self._drafts_at_once

    def release(self, rows: Iterable[int]) -> None:
        """Requests that ended."""
        ended = [row for row in rows if row in self.rows]
        if ended:
            self._learn()
            self._goodput.refills.end(len(ended))
            self._stale, self._evaluate_at = True, self._learner.steps
        for row in ended:
            del self.rows[row]

    def __call__(self) -> StepPlan:
        """The depth of every row in the next step."""
        if self._stale:
            started = perf_counter()
            self._decide()
            self._planning += perf_counter() - started
        searches = self._plan.num_draft_tokens and self._probes.search.take()
        return replace(self._plan, searches=True) if searches else self._plan

    def observe(self, result: StepResult) -> None:
        """Keep what the step cost and gained until there is something to decide: looked at together, results take less
        of the time between two steps.
        """
        self._pending.append(result)
        if len(self._pending) >= self._look:
            self._learn()

    def stand_by(self, result: StepResult) -> None:
        """Another drafter drafted in the step: this one has missed its tokens."""
        self._learn()
        for row, tokens in enumerate(result.tokens):
            state = self.rows.get(row)
            if state is not None:
                state.missed += len(tokens)
                state.wait -= 1

    def take_over(self) -> None:
        """It plans the next steps, after it stood by."""
        self._learn()
        self._stale, self._evaluate_at = True, self._learner.steps

    def promise(self) -> float:
        """Expected speed over that of plain decoding in the next steps: see Goodput.promise."""
        return self._goodput.promise(self._goodput.best(self.rows), self.rows) if self.rows else 1.0

    @property
    def outlook(self) -> float:
        """``promise`` by what was last decided, without deciding anew."""
        return self._goodput.promise(self._choice, self.rows) if self.rows and self._choice is not None else 1.0

    def _learn(self) -> None:
        """Learn from the steps since the last call."""
        started, results, self._pending = perf_counter(), self._pending, []
        if not results or not self.rows:
            return
        self._stale = True
        drafted = [result for result in results if result.plan.num_draft_tokens]
        if plain := [result for result in results if not result.plan.num_draft_tokens]:
            count = len(plain)
            options = {"ready": not self._plain.issuperset(self.rows), "measured": self._timed and count >= self._look}
            self._learner.learn_plain(plain, self.rows, self._choice, **options)
            self._evaluate_at += count - count // (PLAIN_RUN if self._choice and self._choice.depths else IDLE_RUN)
        for result in drafted:
            self._learner.learn_drafted(result, self.rows, self._choice)
        if drafted and self._timed and not drafted[-1].plan.explored:  # which are planned and looked at one by one
            self.knowledge.costs.observe_planning((self._planning + perf_counter() - started) / len(drafted))
        self._planning = 0.0

    @property
    def speed(self) -> Speed | None:
        """Tokens per second so far, and what plain decoding would have given; None before enough steps."""
        return None if self._learner.steps < REFRESH else self._learner.count.speed

    def costs(self) -> tuple[DepthCost, ...]:
        """What steps cost and promise by the depth of their drafts, with as many rows as ran last."""
        return self.knowledge.by_depth(self._running, self.num_nodes, self._pool)

    def _decide(self) -> None:
        """Choose the depth of every row by the goodput of all, then whether to try something else."""
        self._stale = False
        rows = self.rows
        self._look = WARM_UP if self._timed and self._learner.drafted_steps else 1
        if not rows:
            return
        self._running = len(rows)
        if self._goodput.refills.step():
            self._stale, self._plan = True, PLAIN_PLAN
            return
        if self._plain.issuperset(rows):  # there is nothing to decide
            self._plan, self._look = PLAIN_PLAN, REFRESH
            return
        groups = [rows] if self._timed else [{row: state} for row, state in rows.items()]
        if self._learner.steps >= self._evaluate_at or not self._timed:
            self._evaluate(groups)
        chosen, explored = self._explore(groups)
        self._plan = make_plan(rows, chosen, size=self._size, ends_early=self._ends_early, explored=explored)
        deepest, settled = max(chosen.values()), self._learner.steps - self._changed_at >= GIVE_UP
        self._hopeless = self._readies and settled and len(rows) > 1 and not explored and not deepest
        if self._timed and deepest:
            self._look = 1 if explored else max(1, self._evaluate_at - self._learner.steps)
        elif self._timed and not explored and self.knowledge.costs.times_plain(len(rows)) >= REFRESH:
            self._look = max(PLAIN_RUN, min(REFRESH, *(state.wait for state in rows.values())))

    def _explore(self, groups: Sequence[dict[int, RowState]]) -> tuple[dict[int, int], tuple[int, ...]]:
        """The depths of all rows, and which of them are not those that seem best."""
        rows, choice, exploration = self.rows, self._choice, self.knowledge.exploration
        everything = tuple(rows)
        lesson = self._goodput.lesson(rows) if self._timed else 0
        if lesson:
            exploration.take_lesson(self.knowledge.kind(rows))
            return {row: min(lesson, state.most) for row, state in rows.items()}, everything
        assert choice is not None  # rows are weighed when they are admitted
        times_measured = self.knowledge.costs.times_plain(len(rows))
        if self._timed and plain_is_due(
            self._learner.drafted_steps, times_measured=times_measured, speedup=choice.speedup
        ):
            return dict.fromkeys(rows, 0), everything
        chosen, probing = {row: state.depth for row, state in rows.items()}, dict[int, int]()
        for group in groups:
            plain = self.knowledge.costs.plain(len(group))
            probing |= self._probes.choose(group, plain, partial(self._goodput.probe_cost, len(group)))
        if self._timed and not probing and any(chosen.values()):
            turn = exploration.turn(ends_early=self._ends_early)
            if turn is not None:
                return self._goodput.other(chosen, rows, turn, choice.expected) or chosen, everything
        return chosen | probing, tuple(probing)

    def _evaluate(self, groups: Sequence[dict[int, RowState]]) -> None:
        """The depth of every row of the highest goodput."""
        since = self._learner.steps - self._changed_at
        patience = PATIENCE if self.knowledge.costs.num_observed > KNOWN else 1
        self._evaluate_at = self._learner.steps + min(max(SETTLED, SETTLED_ROW * len(self.rows)), patience + since // 2)
        if self._learner.steps >= self._refresh_at:
            self._refresh_at = self._learner.steps + REFRESH
            self.knowledge.refresh()
        for group in groups:
            choice = self._choice = self._goodput.best(group)
            for row, state in group.items():
                state.depth, state.least = choice.depths.get(row, 0), choice.least
        if self._timed and self._choice and not self._choice.depths and self._goodput.hopes(self.rows):
            self.knowledge.exploration.repeat(self.knowledge.kind(self.rows))
