"""Decides how much to draft in every step and row, so that drafting gains as much as it can and never costs much.

The controller maximises goodput (2406.14066): expected new tokens of all rows over the expected seconds of the step.
It learns costs from timed steps (engine/costs) and gains from what was accepted (engine/acceptance), and looks at
results of earlier steps alone, so every lossless verifier stays exact.

Where drafting does not pay it is off, and the drafter is not called. A row then *probes*: it drafts a token now and
then, and deeper at once where that was accepted, so drafting resumes quickly. Probes are paid from a budget that grows
by ``PROBE_SHARE`` of the time of plain decoding and by one probe with each request; that is the bound of what a useless
drafter costs. What the drafter must read first, because it was not called for a while, is part of a probe's cost.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import final

from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.core.step import Finish, StepPlan, StepResult
from paceline.core.tree import NoDraft
from paceline.engine.acceptance import Counts, Pool, survival
from paceline.engine.costs import StepCosts, StepWork
from paceline.engine.watch import Speed

MAX_DRAFT_TOKENS = 8
PROBE_SHARE = 0.02  # of the time of plain decoding, that probes may take
SAVED_STEPS = 64  # plain steps whose share may be saved up
OFTEN_ENOUGH = 16  # steps between two probes of a request, however little they cost
FIRST_WAIT = 8  # steps between the first two probes of a request
PLAIN_PERIOD = 128  # drafted steps between two plain ones, which keep the cost of plain decoding known
DEPTH_PERIOD = 24  # drafted steps between two of another depth, which keep the costs of other depths known
KEEP = 0.94  # weight of a request's former drafted steps, with each
KEEP_PLAIN = 0.97  # the same, with each of its plain ones
OWN_WEIGHT = 2.0  # of the pool against a request's own steps
SWITCH = 1.03  # drafting begins where it is so many times better than plain decoding, and changes above this
PLAIN_SAMPLE = 4  # one of so many plain steps is looked at for its cost
REFRESH = 16  # steps after which costs are looked up again
CLEAR = 1.3  # a gain over plain decoding that needs checking half as often
NEARLY = 0.85  # of the best goodput: what a depth must promise to be tried for its cost


@final
@dataclass(slots=True, kw_only=True)
class RowState:
    """A running request, as the controller sees it."""

    counts: Counts
    most: int  # that the request allows
    depth: int = 0  # chosen for the next steps
    off: bool = False  # drafting did not pay: only probes may begin it again
    off_with: int = 0  # rows that ran then
    wait: int = 1  # steps until the next probe
    interval: int = FIRST_WAIT
    burst: int = 1  # depth of the next probe
    missed: int = 0  # tokens since the drafter was last asked
    survival: list[float] = field(default_factory=list[float])
    offers: float = 1.0


@final
class Knowledge:
    """What is known of a target and a drafter in this process: engines come and go."""

    def __init__(self, *, max_draft_tokens: int = MAX_DRAFT_TOKENS, growth: float = 0.08) -> None:
        self.costs = StepCosts(growth=growth)
        self.pool = Pool(max_draft_tokens)


@final
class Controller(Plan):
    """Plans the steps of ``rows`` rows; drafts are at most ``max_draft_tokens`` deep.

    ``num_nodes`` (None: chains) are the nodes of a draft by its depth, from 0. ``knowledge`` (None: nothing) is where
    it starts from and what it adds to. Without ``timed`` no clock and no other row matters: each depth follows from
    the row's own results. Raises ValueError below 1 draft token.
    """

    def __init__(
        self,
        *,
        rows: int,
        max_draft_tokens: int = MAX_DRAFT_TOKENS,
        num_nodes: Sequence[int] | None = None,
        knowledge: Knowledge | None = None,
        timed: bool = True,
    ) -> None:
        if max_draft_tokens < 1:
            raise ValueError(f"max_draft_tokens={max_draft_tokens}: give at least 1; 0 is plain decoding")
        self._max = max_draft_tokens
        self.num_nodes = list(num_nodes) if num_nodes is not None else list(range(max_draft_tokens + 1))
        self.knowledge = knowledge or Knowledge(max_draft_tokens=max_draft_tokens)
        self._size, self._timed = rows, timed
        self._rows: dict[int, RowState] = {}
        self._steps = self._drafted_steps = 0  # drafted ones since the last plain step
        self._plain_due = 3  # drafted steps until a plain one
        self._stale = True  # whether there is something to decide
        self._budget = 0.0 if timed else inf  # for probes, in costs
        self._known_costs: dict[tuple[float, int, float], float] = {}
        self._plan = StepPlan(0, off=NoDraft.SLOWER)
        self._seconds = self._plain_seconds = 0.0  # of all steps, and as they would be without drafts
        self._tokens = 0

    @property
    def max_draft_tokens(self) -> int:
        return self._max

    def admit(self, rows: Sequence[int], requests: Sequence[Request]) -> None:
        """New requests: nothing is known of them but what the others were like."""
        self.knowledge.pool.refresh()
        alone = StepWork(1)
        self._budget += len(rows) * max(0.0, self._cost(StepWork(1 + self.num_nodes[1], 1, 1)) - self._cost(alone))
        for row, request in zip(rows, requests, strict=True):
            most = self._max if request.num_draft_tokens is None else min(self._max, request.num_draft_tokens)
            self._rows[row] = RowState(counts=Counts(self._max), most=most)
        self._stale = True

    def release(self, rows: Iterable[int]) -> None:
        """Requests that ended."""
        for row in rows:
            if self._rows.pop(row, None) is not None:
                self._stale = True

    def __call__(self) -> StepPlan:
        """The depth of every row in the next step."""
        if self._stale:
            self._decide()
        return self._plan

    def observe(self, result: StepResult) -> None:
        """Learn what the step cost and gained."""
        plan, running = result.plan, self._rows
        asked = drafted = missed = nodes = 0
        num_running = 0
        for row, tokens in enumerate(result.tokens):
            if not tokens:
                continue
            num_running += 1
            state = running.get(row)
            if state is None:
                continue
            depth = min(plan.depth_of(row), state.most)
            if depth:
                asked += 1
                drafted += depth
                nodes += result.num_drafted[row]
                missed += state.missed
                self._learn(state, result, row, depth)
            else:
                state.missed += 1
                if state.off or not state.depth:
                    state.wait -= 1
                    self._stale = self._stale or state.wait <= 0
            if result.finish[row] is not Finish.RUNNING:
                del running[row]
                self._stale = True
        if not num_running:
            return
        self._steps += 1
        share = PROBE_SHARE * self._cost(StepWork(num_running))
        self._budget = min(self._budget + share, max(self._budget, SAVED_STEPS * share))
        self._drafted_steps = self._drafted_steps + 1 if asked else 0
        work = StepWork(num_running + nodes, plan.num_draft_tokens if asked else 0, drafted)
        if self._timed and (asked or self._steps % PLAIN_SAMPLE == 0 or self._steps < REFRESH):
            self.knowledge.costs.observe(work, result.seconds, missed=missed)
        self._seconds += result.seconds.total
        plain = self._cost(StepWork(num_running)) * self.knowledge.costs.level if asked else result.seconds.total
        self._plain_seconds += plain * result.num_tokens / num_running
        self._tokens += result.num_tokens
        if asked or self._steps % REFRESH == 0:
            self._stale = True

    @property
    def speed(self) -> Speed | None:
        """Tokens per second so far, and what plain decoding would have given; None before enough steps."""
        if self._steps < REFRESH or not self._plain_seconds:
            return None
        return Speed(drafted=self._tokens / self._seconds, plain=self._tokens / self._plain_seconds)

    def _learn(self, state: RowState, result: StepResult, row: int, depth: int) -> None:
        """What a row gained by a draft."""
        pool = self.knowledge.pool
        offered = result.num_drafted[row] > 0
        if offered or result.no_draft[row] is NoDraft.NO_MATCH or result.no_draft[row] is NoDraft.DECLINED:
            submitted = min(depth, result.num_drafted[row]) if offered else 0
            accepted = result.num_accepted[row]
            if result.finish[row] is not Finish.RUNNING:
                submitted = min(submitted, accepted)  # cut by the end, not by a rejection
            if submitted or not offered:
                state.counts.fade(KEEP_PLAIN**state.missed)
                state.counts.add(num_accepted=accepted, depth=submitted, keep=KEEP)
                if self._timed:
                    pool.counts.add(num_accepted=accepted, depth=submitted, keep=pool.KEEP)
            if state.off:
                self._judge_probe(state, accepted, submitted)
        state.missed = 0

    def _judge_probe(self, state: RowState, accepted: int, submitted: int) -> None:
        """A probe that was accepted is followed by a deeper one, one that was not by a longer wait."""
        if submitted and accepted:
            state.off = False
            state.interval, state.wait = FIRST_WAIT, 0
            state.burst = min(state.most, 2 * submitted) if accepted == submitted else 1
        else:
            state.wait, state.burst = state.interval, 1
            state.interval = min(2 * state.interval, OFTEN_ENOUGH)

    def _decide(self) -> None:
        """Choose the depth of every row by the goodput of all, then whether to try something else."""
        self._stale = False
        if self._steps % REFRESH == 0:
            self._known_costs.clear()
            self.knowledge.pool.refresh()
        rows = self._rows
        if not rows:
            return
        groups = [rows] if self._timed else [{row: state} for row, state in rows.items()]
        chosen: dict[int, int] = {}
        probing: dict[int, int] = {}
        goodput = gain = 0.0
        for group in groups:
            plain = self._cost(StepWork(len(group)))
            depths, goodput = self._best_depths(group, plain)
            gain = goodput * plain / len(group)  # over plain decoding
            for row, state in group.items():
                state.depth = chosen[row] = depths.get(row, 0)
                if not state.depth and not state.off:
                    state.off_with = len(group)
                state.off = not state.depth
            probing |= self._probes(group, plain)
        off, explored = NoDraft.SLOWER, tuple(probing)
        chosen |= probing
        if self._timed and self._drafted_steps and any(state.depth for state in rows.values()):
            due = self._plain_due if gain < CLEAR else 2 * self._plain_due
            if self._drafted_steps >= due:
                self._plain_due = min(PLAIN_PERIOD, 2 * self._plain_due)
                self._stale, off = True, NoDraft.MEASURED
                chosen, explored = dict.fromkeys(chosen, 0), tuple(rows)
            elif self._drafted_steps % DEPTH_PERIOD == DEPTH_PERIOD // 2 and not probing:
                other = self._other_depths(chosen, goodput)
                if other is not None:
                    chosen, explored = other, tuple(rows)
        self._plan = self._make_plan(chosen, off, explored)

    def _make_plan(self, chosen: dict[int, int], off: NoDraft, explored: tuple[int, ...]) -> StepPlan:
        values = set(chosen.values())
        if len(values) == 1:
            return StepPlan(values.pop(), off=off, explored=explored)
        depths = tuple(chosen.get(row, 0) for row in range(self._size))
        return StepPlan(max(depths), depths, off=off, explored=explored)

    def _best_depths(self, rows: dict[int, RowState], plain: float) -> tuple[dict[int, int], float]:
        """The depths of the highest goodput, of rows that draft at all, and that goodput.

        Tokens are added in the order of their chance to be accepted, so the best number of them is found on the way.
        """
        num_nodes, running = self.num_nodes, len(rows)
        pool = self.knowledge.pool
        options: list[tuple[float, int, int]] = []
        for row, state in rows.items():
            if state.off and not (running >= 1.5 * state.off_with or 1.5 * running <= state.off_with):
                continue
            state.survival = survival(state.counts, pool, weight=OWN_WEIGHT)
            counts = state.counts
            state.offers = (OWN_WEIGHT * pool.offers + counts.offered) / (OWN_WEIGHT + counts.asked)
            options += [(state.offers * alive, row, index) for index, alive in enumerate(state.survival[: state.most])]
        options.sort(key=lambda option: (-option[0], option[2]))
        best, best_goodput = 0, running / plain * SWITCH
        tokens, nodes, deepest, drafted = float(running), float(running), 0, 0
        for number, (alive, row, index) in enumerate(options, start=1):
            tokens += alive
            nodes += rows[row].offers * (num_nodes[index + 1] - num_nodes[index])
            deepest, drafted = max(deepest, index + 1), drafted + 1
            goodput = tokens / self._cost(StepWork(nodes, deepest, drafted))
            if goodput > best_goodput:
                best, best_goodput = number, goodput
        depths: dict[int, int] = {}
        for _, row, index in options[:best]:
            depths[row] = max(depths.get(row, 0), index + 1)
        return depths, best_goodput

    def _probes(self, rows: dict[int, RowState], plain: float) -> dict[int, int]:
        """The rows that are off and whose turn to probe has come, with the depth of the probe, as the budget allows."""
        due = sorted((state.wait, row) for row, state in rows.items() if state.off and state.most and state.wait <= 0)
        probing: dict[int, int] = {}
        spent = 0.0
        nodes, drafted, missed = float(len(rows)), 0, 0
        for _, row in due:
            state = rows[row]
            nodes += self.num_nodes[state.burst]
            drafted, missed = drafted + state.burst, missed + state.missed
            depth = max([state.burst, *probing.values()])
            cost = self._cost(StepWork(nodes, depth, drafted)) - plain + self.knowledge.costs.catch_up * missed
            if cost > self._budget:
                saving = ceil((cost - self._budget) / (PROBE_SHARE * plain))
                for _, other in due[len(probing) :]:
                    rows[other].wait = saving
                break
            probing[row], spent = state.burst, cost
            state.wait = state.interval
        self._budget -= spent
        return probing

    def _other_depths(self, chosen: dict[int, int], goodput: float) -> dict[int, int] | None:
        """All depths one deeper or shallower, if that may be nearly as good: what it costs is then known."""
        shift = (1, -1, 2)[self._drafted_steps // DEPTH_PERIOD % 3]
        other = {row: min(max(depth + shift, 1), self._rows[row].most) if depth else 0 for row, depth in chosen.items()}
        nodes = tokens = float(len(other))
        for row, depth in other.items():
            state = self._rows[row]
            if depth:
                nodes += state.offers * self.num_nodes[depth]
                tokens += state.offers * sum(state.survival[:depth])
        expected = tokens / self._cost(StepWork(nodes, max(other.values()), sum(other.values())))
        return other if other != chosen and expected > NEARLY * goodput else None

    def _cost(self, work: StepWork) -> float:
        """The cost of a step in units of the level, looked up at most once in ``REFRESH`` steps."""
        key = (round(4 * work.nodes) / 4, work.depth, work.drafted)
        known = self._known_costs.get(key)
        if known is None:
            known = self._known_costs[key] = self.knowledge.costs(work)
        return known
