"""Decides how much to draft in every step and row, so that drafting gains as much as it can and never costs much.

The controller maximises goodput (2406.14066): expected new tokens of all rows over the expected seconds of the step.
It learns costs from timed steps (engine/costs) and gains from what was accepted (engine/acceptance), and looks at
results of earlier steps alone, so every lossless verifier stays exact.

Where drafting does not pay it is off, and the drafter is not called. A row then *probes* (engine/probes): it drafts a
token now and then, and more at once where that was accepted, so drafting resumes quickly. Probes are paid from a
budget, which bounds what a useless drafter costs.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import final

from paceline.core.early_stop import StopRule, noted_levels
from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.core.step import Finish, StepPlan, StepResult
from paceline.core.tree import NoDraft
from paceline.engine.acceptance import Counts
from paceline.engine.costs import DepthCost, StepWork
from paceline.engine.goodput import Goodput, keep_over
from paceline.engine.knowledge import MAX_DRAFT_TOKENS, Knowledge
from paceline.engine.probes import Probes, RowState
from paceline.engine.watch import Speed

FIRST_PLAIN = 3  # drafted steps until a plain one, where nothing is known of plain decoding; twice as many then
PLAIN_PERIOD = 128  # drafted steps between two plain ones, which keep the cost of plain decoding known
DEPTH_PERIOD = 48  # drafted steps between two of another depth, which keep the costs of other depths known
WHOLE_STEP = 60  # the drafted step after a plain one whose chains do not end early, so that all levels stay known
KEEP = 0.94  # weight of a request's former drafted steps, with each
TELLING = 16  # first drafted steps of a request that say what the next ones will be like
SETTLED = 6  # drafted steps between two decisions, or as many as there are rows
PATIENCE = 4  # fewer while rows are new: one more after every so many steps
STRETCH = 32  # steps over which a drafter that stood by must earn what it reads first
SAMPLE = 4  # one of so many steps of a known cost, or of a draft like the ones before, is looked at for it
REFRESH = 16  # steps after which costs are looked up again


@final
class Controller(Plan):
    """Plans the steps of ``rows`` rows; drafts are at most ``max_draft_tokens`` deep.

    ``num_nodes`` (None: chains) are the nodes of a draft by its depth, from 0. ``knowledge`` (None: nothing) is where
    it starts from and what it adds to. With ``ends_early`` chains end where the draft's own confidence says that the
    next token does not pay; with ``postpones`` the drafter may read prompts later. Without ``timed`` no clock and no
    other row matters: each depth follows from the row's own results. Raises ValueError below 1 draft token.
    """

    def __init__(
        self,
        *,
        rows: int,
        max_draft_tokens: int = MAX_DRAFT_TOKENS,
        num_nodes: Sequence[int] | None = None,
        knowledge: Knowledge | None = None,
        ends_early: bool = False,
        postpones: bool = False,
        timed: bool = True,
    ) -> None:
        if max_draft_tokens < 1:
            raise ValueError(f"max_draft_tokens={max_draft_tokens}: give at least 1; 0 is plain decoding")
        self._max = max_draft_tokens
        self.num_nodes = list(num_nodes) if num_nodes is not None else list(range(max_draft_tokens + 1))
        self.knowledge = knowledge or Knowledge(max_draft_tokens=max_draft_tokens)
        self._goodput = Goodput(self.knowledge, self.num_nodes, ends_early=ends_early)
        self._cost = self._goodput.cost
        self._size, self._timed, self._running = rows, timed, 1
        self._postpones, self._drafts_at_once = postpones and timed, True
        self._acceptance = self.knowledge.confidence.acceptance() if ends_early else ()  # by level; (): not used
        self._rows: dict[int, RowState] = {}
        self._steps = self._drafted_steps = 0  # drafted ones since the last plain step
        self._stale = True  # whether there is something to decide
        self._evaluate_at = self._refresh_at = self._changed_at = 0  # steps; changed: the rows
        self._speedup = 1.0  # goodput of the chosen depths over that of plain decoding
        self._probes = self.knowledge.probes if timed else Probes(bounded=False)
        self._plain_run = 0  # plain steps that were not looked at, and their seconds
        self._plain_run_seconds = 0.0
        self._look = 1  # plain steps until they are looked at
        self._plan = StepPlan(0, off=NoDraft.SLOWER)
        self._seconds = self._plain_seconds = 0.0  # of all steps, and as they would be without drafts
        self._tokens = 0

    @property
    def max_draft_tokens(self) -> int:
        return self._max

    def admit(self, rows: Sequence[int], requests: Sequence[Request]) -> None:
        """New requests: nothing is known of them but what the others were like."""
        self._settle()
        self.knowledge.pool.refresh()
        for row, request in zip(rows, requests, strict=True):
            most = self._max if request.num_draft_tokens is None else min(self._max, request.num_draft_tokens)
            self._rows[row] = RowState(counts=Counts(self._max), most=most)
        self._drafts_at_once = not self._postpones or bool(self._goodput.best(self._rows).depths.keys() & set(rows))
        if not self._drafts_at_once:
            for row, request in zip(rows, requests, strict=True):
                self._rows[row].missed = len(request.tokens) - 1
        running, added = len(self._rows), len(rows)
        self._probes.grant(self._cost(running + added * self.num_nodes[1], 1, added) - self._cost(running))
        self._stale, self._evaluate_at, self._changed_at = True, self._steps, self._steps

    @property
    def drafts_at_once(self) -> bool:
        return self._drafts_at_once

    def release(self, rows: Iterable[int]) -> None:
        """Requests that ended."""
        self._settle()
        for row in rows:
            if self._rows.pop(row, None) is not None:
                self._stale, self._evaluate_at = True, self._steps

    def __call__(self) -> StepPlan:
        """The depth of every row in the next step."""
        if self._stale:
            self._decide()
        return self._plan

    def observe(self, result: StepResult) -> None:
        """Learn what the step cost and gained. Plain steps are only counted, until there is something to decide."""
        plan = result.plan
        if plan.num_draft_tokens == 0:
            self._plain_run += 1
            self._plain_run_seconds += result.seconds.total
            if self._plain_run >= self._look:
                self._settle(result)
            return
        self._settle()
        drafted = missed = nodes = num_running = deepest = 0
        for row, tokens in enumerate(result.tokens):
            state = self._rows.get(row)
            if not tokens or state is None:
                continue
            num_running += 1
            depth = min(plan.depth_of(row), state.most)
            if depth:
                read = depth if plan.stop is None else min(depth, result.num_drafted[row] + 1)
                deepest = max(deepest, read)
                drafted += read
                nodes += result.num_drafted[row]
                missed += state.missed
                self._learn(state, result, row, depth)
            else:
                state.missed += 1
                state.wait -= 1
        if not num_running:
            return
        self._steps += 1
        self._drafted_steps += 1
        # What was explored comes to its end; else there is something to decide now and then.
        self._stale = bool(plan.explored) or self._steps >= self._evaluate_at or not self._timed
        self._probes.earn(1, self._cost(num_running))
        costs = self.knowledge.costs
        nodes += num_running
        if self._timed and (self._steps % SAMPLE == 0 or missed or costs.score.measured(nodes) < REFRESH):
            work = StepWork(nodes, deepest, drafted)
            costs.observe(work, result.seconds, missed=missed)
        gained = result.num_tokens
        self._tokens += gained
        self._seconds += result.seconds.total
        self._plain_seconds += self._cost(num_running) * costs.level * gained / num_running

    def stand_by(self, result: StepResult) -> None:
        """Another drafter drafted in the step: this one has missed its tokens."""
        self._settle()
        for row, tokens in enumerate(result.tokens):
            state = self._rows.get(row)
            if state is not None:
                state.missed += len(tokens)
                state.wait -= 1

    def take_over(self) -> None:
        """It plans the next steps, after it stood by."""
        self._settle()
        self._stale, self._evaluate_at = True, self._steps

    def promise(self) -> float:
        """Expected speed over that of plain decoding in the next steps; 1 where drafting would not pay.

        What the drafter must read first, because it stood by, is spread over ``STRETCH`` steps.
        """
        if not self._rows:
            return 1.0
        depths, speedup, _ = self._goodput.best(self._rows)
        if not depths:
            return 1.0
        missed = sum(self._rows[row].missed for row in depths)
        reading = self.knowledge.costs.catch_up * missed / (STRETCH * self._cost(len(self._rows)))
        return max(1.0, speedup - reading)

    def _settle(self, result: StepResult | None = None) -> None:
        """Count the plain steps since the last call; ``result`` is that of the last one."""
        count, seconds, running = self._plain_run, self._plain_run_seconds, len(self._rows)
        self._plain_run, self._plain_run_seconds = 0, 0.0
        if not count or not running:
            return
        for state in self._rows.values():
            state.missed += count
            state.wait -= count
        if result is not None and self._timed:
            self.knowledge.costs.observe(StepWork(running), result.seconds)
        self._probes.earn(count, self._cost(running))
        self._steps += count
        self._drafted_steps = 0
        self._tokens += count * running
        self._seconds += seconds
        self._plain_seconds += seconds
        self._stale = True
        self._evaluate_at += count - count // PATIENCE  # plain steps teach little

    @property
    def speed(self) -> Speed | None:
        """Tokens per second so far, and what plain decoding would have given; None before enough steps."""
        if self._steps < REFRESH or not self._plain_seconds:
            return None
        return Speed(drafted=self._tokens / self._seconds, plain=self._tokens / self._plain_seconds)

    def costs(self) -> tuple[DepthCost, ...]:
        """What steps cost and promise by the depth of their drafts, with as many rows as ran last."""
        return self.knowledge.by_depth(self._running, self.num_nodes)

    def _learn(self, state: RowState, result: StepResult, row: int, depth: int) -> None:
        """What a row gained by a draft."""
        pool, reason = self.knowledge.pool, result.no_draft[row]
        accepted, submitted, left_out = result.num_accepted[row], max(0, min(depth, result.num_drafted[row])), None
        if self._acceptance and submitted < depth:  # the level of what was not submitted is noted, and nothing gained
            left_out = 0.0 if len(noted_levels(result.confidence[row], submitted + 1)) > submitted else None
        offered = submitted > 0 or left_out is not None
        if offered or reason is NoDraft.NO_MATCH or reason is NoDraft.DECLINED:
            if self._acceptance and self._timed and (self._steps % SAMPLE == 0 or state.learned <= TELLING):
                self.knowledge.confidence.add(result.confidence[row], num_accepted=accepted, num_drafted=submitted)
                if row not in result.plan.explored:
                    pool.note_reached(depth, submitted)
            if result.finish[row] is not Finish.RUNNING:
                submitted, left_out = min(submitted, accepted), None  # cut by the end, not by a rejection
            if submitted or left_out is not None or not offered:
                keep = KEEP * keep_over(state.missed)
                state.counts.add(num_accepted=accepted, depth=submitted, keep=keep, left_out=left_out)
                state.learned += 1
                if self._timed and state.learned <= TELLING:  # or requests that draft for long would speak for all
                    pool.counts.add(num_accepted=accepted, depth=submitted, keep=pool.KEEP, left_out=left_out)
            if not state.depth:
                self._probes.judge(state, accepted=accepted, submitted=submitted)
        state.missed = 0

    def _decide(self) -> None:
        """Choose the depth of every row by the goodput of all, then whether to try something else."""
        self._stale = False
        rows = self._rows
        self._look = 1
        if not rows:
            return
        self._running = len(rows)
        groups = [rows] if self._timed else [{row: state} for row, state in rows.items()]
        if self._steps >= self._evaluate_at or not self._timed:
            self._evaluate(groups)
        chosen = {row: state.depth for row, state in rows.items()}
        known = self.knowledge.costs.score.measured(len(rows))
        if self._timed and self._drafted_steps >= min(PLAIN_PERIOD, FIRST_PLAIN << min(known, 8)):
            self._plan = self._make_plan(dict.fromkeys(chosen, 0), NoDraft.MEASURED, tuple(rows))
            return
        probing: dict[int, int] = {}
        for group in groups:
            probing |= self._probes.choose(group, self._cost(len(group)), partial(self._goodput.probe_cost, len(group)))
        explored = tuple(probing)
        chosen |= probing
        if self._timed and self._acceptance:
            explored = explored or tuple(chosen) if self._drafted_steps == WHOLE_STEP else explored
        elif self._timed and self._drafted_steps % DEPTH_PERIOD == DEPTH_PERIOD - 1 and not probing:
            shift = (1, -1, 2)[self._steps // DEPTH_PERIOD % 3]
            other = self._goodput.other(chosen, rows, shift, self._speedup)
            if other:
                chosen, explored = other, tuple(rows)
        self._plan = self._make_plan(chosen, NoDraft.SLOWER, explored)
        if self._timed and known >= REFRESH:
            self._look = max(PATIENCE, min(REFRESH, *(state.wait for state in rows.values())))

    def _evaluate(self, groups: Sequence[dict[int, RowState]]) -> None:
        """The depth of every row of the highest goodput."""
        since = self._steps - self._changed_at
        self._evaluate_at = self._steps + min(max(SETTLED, len(self._rows)), 1 + since // PATIENCE)
        if self._steps >= self._refresh_at:
            self._refresh_at = self._steps + REFRESH
            self._goodput.refresh()
            if self._acceptance:
                self._acceptance = self.knowledge.confidence.acceptance()
        for group in groups:
            depths, self._speedup, least = self._goodput.best(group)
            for row, state in group.items():
                state.depth, state.least = depths.get(row, 0), least

    def _make_plan(self, chosen: dict[int, int], off: NoDraft, explored: tuple[int, ...]) -> StepPlan:
        deepest, depths, stop = max(chosen.values()), None, None
        if min(chosen.values()) < deepest:
            depths = tuple(chosen.get(row, 0) for row in range(self._size))
        if self._acceptance and deepest:  # what is explored is drafted whole
            least = {row: 0.0 if row in explored else state.least for row, state in self._rows.items()}
            stop = StopRule(self._acceptance, tuple(least.get(row, 0.0) for row in range(self._size)))
        return StepPlan(deepest, depths, off=off, explored=explored, stop=stop)
