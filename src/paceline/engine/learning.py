"""What steps teach: each row of itself, and all of them of the costs and of whether drafting pays."""

from collections.abc import Mapping, Sequence
from typing import final

from paceline.core.step import StepResult
from paceline.engine.calibration import DISTURBED
from paceline.engine.costs import StepWork
from paceline.engine.curve import WARM
from paceline.engine.goodput import Choice
from paceline.engine.knowledge import Knowledge
from paceline.engine.probes import Probes
from paceline.engine.row_state import RowState
from paceline.engine.watch import SpeedCount

SAMPLE = 4  # one of so many steps of a known cost, or of a request that is known, is looked at for it


@final
class StepLearner:
    """Adds what steps teach to ``knowledge``, and counts them; ``probes`` earn and are judged.

    Drafts have ``num_unverified`` nodes more each. RowState.learn has the other options.
    """

    def __init__(self, knowledge: Knowledge, probes: Probes, *, num_unverified: int, levels: bool, timed: bool) -> None:
        self._knowledge, self._probes = knowledge, probes
        self._num_unverified, self._levels, self._timed = num_unverified, levels, timed
        self.steps = self.drafted_steps = 0  # drafted ones since the last plain step
        self.count = SpeedCount()

    def learn_drafted(self, result: StepResult, rows: Mapping[int, RowState], choice: Choice | None) -> None:
        """Learn from a step of ``rows`` with drafts, whose depths ``choice`` gave."""
        plan, sample = result.plan, self.steps % SAMPLE == 0
        work, missed = self._learn_rows(result, rows, sample=sample)
        if not work.rows:
            return
        self.steps += 1
        self.drafted_steps += 1
        knowledge, kind = self._knowledge, self._knowledge.kind(rows)
        knowledge.exploration.count()
        costs, seconds = knowledge.costs, result.seconds.without_search
        plain = costs.plain(work.rows)
        self._probes.earn(1, plain)
        if self._timed and (sample or missed or costs.score.measured(work.nodes, work.rows - 1) < WARM):
            costs.observe(work, seconds, missed=missed)
        if plan.searches:
            self._probes.search.spend(result.seconds.search / costs.level)
        per_row = result.num_tokens / work.rows
        plain_seconds = plain * costs.plain_level(work.rows)
        self.count.add(result.num_tokens, result.seconds.total, plain_seconds=plain_seconds * per_row)
        if self._timed and not plan.num_copied:
            cost = (seconds.total + costs.planning) / plain_seconds
            likely = min(cost, DISTURBED * costs(work) / plain)
            knowledge.readiness_of(rows).observe_ready(per_row, likely)
            if plan.explored:
                knowledge.exploration.note_explored(kind, likely - per_row)
            elif choice is not None:
                choice.observe(rows=work.rows, tokens=per_row, cost=cost)

    def learn_plain(
        self,
        results: Sequence[StepResult],
        rows: Mapping[int, RowState],
        choice: Choice | None,
        *,
        ready: bool,
        measured: bool,
    ) -> None:
        """Learn from a run of plain steps of ``rows``, ``ready`` for drafts or not. They are only counted; the last one
        tells the cost if that is ``measured``.
        """
        count, running, last = len(results), len(rows), results[-1].seconds
        seconds = sum(result.seconds.total for result in results)
        for state in rows.values():
            state.missed += count
            state.wait -= count
            state.left -= count
        costs, readiness = self._knowledge.costs, self._knowledge.readiness_of(rows)
        if not ready and costs.level > 0:
            readiness.observe_plain(count, costs.share_unread(running, last) if measured else None)
        else:
            readiness.observe_ready(count, count)
            self._knowledge.exploration.note_plain(self._knowledge.kind(rows), count)
            if measured:
                costs.observe_plain(running, last)
        if choice is not None:
            choice.calibration.fade(running * count)
        self._probes.earn(count, costs.plain(running))
        self.steps += count
        self.drafted_steps = 0
        self.count.add(count * running, seconds, plain_seconds=seconds)

    def _learn_rows(self, result: StepResult, rows: Mapping[int, RowState], *, sample: bool) -> tuple[StepWork, int]:
        """Let every row that drafted learn, and judge those that probed.

        Returns what the step did, and how many tokens drafters had missed before.
        """
        plan = result.plan
        drafted = missed = nodes = num_running = deepest = 0
        for row, tokens in enumerate(result.tokens):
            state = rows.get(row)
            if not tokens or state is None:
                continue
            num_running, nodes = num_running + 1, nodes + 1 + result.num_drafted[row]
            depth = min(plan.depth_of(row), state.room)
            state.left -= len(tokens)
            if depth:
                read = depth if plan.stop is None else min(depth, result.num_drafted[row] + 1)
                deepest = max(deepest, read)
                drafted += read
                nodes += self._num_unverified
                missed += state.missed
                submitted = state.learn(result, row, depth, levels=self._levels, timed=self._timed, sample=sample)
                if submitted is not None and not state.depth:
                    self._probes.judge(state, accepted=result.num_accepted[row], submitted=submitted)
            else:  # plain, or copied beside the others
                state.missed += len(tokens)
                state.wait -= 1
        return StepWork(num_running, nodes, deepest, drafted), missed
