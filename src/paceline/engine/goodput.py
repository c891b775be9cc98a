"""The depths of the highest goodput (2406.14066): expected new tokens of all rows over the expected cost of a step."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import NamedTuple, final

from paceline.engine.calibration import Calibration
from paceline.engine.closed_batch import Refills, end_together
from paceline.engine.costs import StepWork
from paceline.engine.draft_work import DraftWork, StepDrafts, work_by_depth
from paceline.engine.knowledge import Knowledge
from paceline.engine.readiness import READING, TRIAL, WORTH, Readiness
from paceline.engine.row_state import RowState

HORIZON = 128  # tokens over which a drafter must earn what it reads first
EARNED = 2.0  # times what reading takes: it is paid at once, and what it is to win may not come true
SWITCH, SWITCH_SEVERAL = WORTH, 1.05  # drafting begins where it is so many times better than plain decoding
WORTHLESS = 0.03  # no token pays that is less likely to be accepted
MOST_LEAST = 0.4  # a token that is as likely as this to be accepted is drafted whatever it costs
NEARLY = 0.85  # of the best goodput: what a depth must promise to be tried for its cost
FIRST_LESSONS = 4  # that are given whatever they promise: the first drafts meet cold caches
MORE_LESSONS = 2  # of a request that is kept ready though drafting does not promise to pay
HOPE = 2.0  # standard deviations by which drafts may turn out to be accepted more often than was seen


class Choice(NamedTuple):
    """Depths of the rows that draft at all, and what is expected of them: their goodput over that of plain decoding,
    and what a step costs in plain ones. ``calibration`` tells how much of that comes true.

    A token that is less likely than ``least`` to be accepted is not worth its cost. In a closed batch rows end one by
    one, so that all steps until the end gain only the share ``lasting`` of what the next one does.
    """

    depths: Mapping[int, int]
    expected: float
    cost: float
    least: float
    calibration: Calibration
    lasting: float = 1.0

    @property
    def speedup(self) -> float:
        """Over plain decoding, as expectations have come true."""
        return self.expected * self.lasting * self.calibration.factor

    def observe(self, *, rows: int, tokens: float, cost: float) -> None:
        """A step that was drafted so gave ``tokens`` per row and took ``cost`` plain steps."""
        self.calibration.add(rows=rows, tokens=tokens, cost=cost, speedup=self.expected, expected_cost=self.cost)


@final
class Goodput:
    """Weighs depths by what ``knowledge`` says; a draft has ``num_nodes`` nodes by its depth, from 0.

    Of these, ``num_unverified`` are there whether the drafter has a draft or not. With ``ends_early`` drafts end by
    themselves where they are not sure.
    """

    def __init__(
        self, knowledge: Knowledge, num_nodes: Sequence[int], *, num_unverified: int = 0, ends_early: bool = False
    ) -> None:
        self.knowledge, self.num_nodes, self.ends_early = knowledge, num_nodes, ends_early
        self.num_unverified = num_unverified
        self.refills = Refills()
        self._num_waiting, self._kept = 0, False  # requests that will join the newest; whether these are kept ready

    def best(self, rows: Mapping[int, RowState]) -> Choice:
        """The depths of the highest goodput; those with which rows end together, where no other takes their places."""
        if not any(state.room for state in rows.values()):
            return self._plain(rows)
        for state in rows.values():
            state.expect()
        closed = len(rows) > 1 and not self.refills.expected and all(state.lasts for state in rows.values())
        choice = self._end_together(rows) if closed else self._most_tokens(rows)
        missed = sum(rows[row].missed for row in choice.depths)
        if missed:  # which the drafter must read first
            speedup, costs = choice.speedup, self.knowledge.costs
            lasts = min(HORIZON, max(rows[row].left for row in choice.depths)) * costs.plain(len(rows))
            reading, won = costs.catching_up(missed), (1 - 1 / speedup) * lasts
            if won < (reading - (1 - TRIAL) * lasts if self._tries(rows) else EARNED * reading):
                return self._plain(rows)
        return choice

    def _switch(self, rows: Mapping[int, RowState]) -> float:
        """How many times better than plain decoding drafting must be expected to be, by how expectations come true."""
        several = TRIAL if self._tries(rows) else SWITCH_SEVERAL
        return (SWITCH if len(rows) == 1 else several) / self.knowledge.calibration(rows).factor

    def _tries(self, rows: Mapping[int, RowState]) -> bool:
        """Whether drafting that is expected to pay nearly may be tried, to find out."""
        return self.knowledge.readiness_of(rows).tries

    def _plain(self, rows: Mapping[int, RowState]) -> Choice:
        """No drafts."""
        return Choice({}, self._switch(rows), 1.0, 0.0, self.knowledge.calibration(rows))

    def _most_tokens(self, rows: Mapping[int, RowState]) -> Choice:
        """The depths of the highest goodput.

        Tokens are added in the order of their chance to be accepted, so the best number of them is found on the way.
        They add up as in StepDrafts, but those alone that are looked at, for nothing takes the controller longer.
        """
        num_nodes, cost_of, running = self.num_nodes, self.knowledge.costs.of, len(rows)
        options: list[tuple[float, int, int]] = []  # minus the chance, depth - 1, row
        ahead = 0.0  # tokens that are expected of all options that were not looked at, negative
        for row, state in rows.items():
            share = -state.offers
            for index, alive in enumerate(state.survival[: state.room]):
                if alive < WORTHLESS:
                    break
                options.append((share * alive, index, row))
                ahead += share * alive
        options.sort()
        best, best_goodput, best_cost, least = 0, self._switch(rows), 1.0, 0.0
        tokens, nodes, deepest = float(running), float(running), 0
        plain = cost_of(running, nodes)
        value = plain / tokens
        for number, (chance, index, row) in enumerate(options, start=1):
            state = rows[row]
            tokens -= chance
            ahead -= chance
            nodes += state.offers * (num_nodes[index + 1] - num_nodes[index])
            if index == 0:
                nodes += (1.0 - state.offers) * self.num_unverified
            alone = index >= deepest  # no row before this one drafts so deep
            deepest += alone
            cost = cost_of(running, nodes, deepest, number)
            if value * tokens > best_goodput * cost:
                best, best_goodput, best_cost = number, value * tokens / cost, cost / plain
                if self.ends_early:
                    less = cost_of(running, nodes - 1, max(deepest - alone, 1), number - 1)
                    least = max(0.0, cost - less) * tokens / cost
            elif value * (tokens - ahead) <= best_goodput * cost:  # not even if further ones cost nothing
                break
        depths: dict[int, int] = {}
        for _, index, row in options[:best]:
            if index >= depths.get(row, 0):
                depths[row] = index + 1
        calibration = self.knowledge.calibration(rows)
        return Choice(depths, best_goodput, best_cost, min(least, MOST_LEAST), calibration)

    def _end_together(self, rows: Mapping[int, RowState]) -> Choice:
        """The depths with which rows end together, if that pays."""
        work = {row: self._work(state) for row, state in rows.items()}
        cost_of, calibration = self.knowledge.costs.of, self.knowledge.calibration(rows)
        depths, speedup = end_together(rows, work, cost_of)
        chosen = {row: depth for row, depth in depths.items() if depth}
        if not chosen or speedup < self._switch(rows):
            return self._plain(rows)
        step = self._step(depths, work)
        goodput, cost = step.speedup(cost_of), step.cost(cost_of) / cost_of(step.rows, step.rows)
        least = min(step.least(cost_of), MOST_LEAST) if self.ends_early else 0.0
        return Choice(chosen, goodput, cost, least, calibration, speedup / goodput)

    def _work(self, state: RowState) -> list[DraftWork]:
        """What is expected of the drafts of a row by their depth, from 0."""
        return work_by_depth(state, self.num_nodes, num_unverified=self.num_unverified)

    def _step(self, depths: Mapping[int, int], work: Mapping[int, Sequence[DraftWork]]) -> StepDrafts:
        """A step with drafts of these depths."""
        step = StepDrafts()
        for row, depth in depths.items():
            step.add_row(work[row], depth)
        return step

    def promise(self, choice: Choice, rows: Mapping[int, RowState]) -> float:
        """Expected speed over plain decoding with ``choice``; what drafters must read first is spread over ``HORIZON``.

        1 where drafting would not pay.
        """
        costs, running = self.knowledge.costs, len(rows)
        missed = sum(rows[row].missed for row in choice.depths if row in rows)
        reading = costs.catching_up(missed) / (HORIZON * costs.plain(running))
        return max(1.0, choice.speedup - reading) if choice.depths else 1.0

    def keeps_ready(
        self, new: Mapping[int, RowState], rows: Mapping[int, RowState], *, reread: int, unread: int, waiting: int
    ) -> bool:
        """Whether ``new`` rows beside ``rows``, and so many more like them that wait to begin, are to be kept ready for
        drafts: see engine/readiness. For that, a drafter would read ``unread`` tokens of their prompts, and the target
        ``reread`` again, which is won back until the last of them ends, if at all.
        """
        together = {**rows, **new, **dict(zip(range(-waiting, 0), cycle(new.values()), strict=False))}
        costs, readiness = self.knowledge.costs, self.knowledge.readiness_of(together)
        reading = READING * reread + costs.reading(unread) / costs.plain(len(together))
        if len(new) + waiting != self._num_waiting:  # else it was decided for them too, as they waited beside others
            self._kept = self._decide_ready(new, together, readiness, reading)
        self._num_waiting = waiting
        if self._kept:
            readiness.observe_ready(0.0, reading)
        return self._kept

    def _decide_ready(
        self, new: Mapping[int, RowState], together: Mapping[int, RowState], readiness: Readiness, reading: float
    ) -> bool:
        """Whether the ``new`` ones of all rows that will run ``together`` are to be kept ready, and those like them."""
        if self.knowledge.exploration.is_new(self.knowledge.kind(together)) and self.lesson(together):
            return True
        choice, steps = self.best(together), max(state.left for state in new.values())
        speedup = choice.speedup if choice.depths.keys() & new.keys() else 0.0
        speedup /= 1.0 + speedup * reading * len(together) / (len(new) * steps)
        late = self.knowledge.costs.catching_up(sum(state.missed for state in new.values()))
        late /= self.knowledge.costs.plain(len(together))
        hopeful = late <= (1 - TRIAL) * steps and self.hopes(together)
        kept = readiness.keeps(speedup, hopeful=hopeful, reading=reading + late)
        if kept and not readiness.pays(speedup):  # its own text may be one for which drafting does
            self.knowledge.exploration.ensure(self.knowledge.kind(together), MORE_LESSONS)
        return kept

    def lesson(self, rows: Mapping[int, RowState]) -> int:
        """The depth of the next of the first drafts of such ``rows``, which are given whatever is expected of them; 0
        after the last one, where there is no hope that drafting pays, and where no row may draft.
        """
        depth = self.knowledge.exploration.lesson(self.knowledge.kind(rows))
        return depth if depth and any(state.most for state in rows.values()) and self.hopes(rows) else 0

    def hopes(self, rows: Mapping[int, RowState]) -> bool:
        """Whether drafting may still turn out to pay for ``rows``: if the acceptance is as high, and a draft as cheap,
        as what was seen so far leaves possible.
        """
        num_lessons = self.knowledge.exploration.num_lessons
        if num_lessons < FIRST_LESSONS:
            return True
        _, samples = self.knowledge.kind(rows)
        pool = self.knowledge.sampled if samples else self.knowledge.greedy
        running, cost_of, sure = len(rows), self.knowledge.costs.of, num_lessons / (1 + num_lessons)
        plain = cost_of(running, running)
        for depth, tokens in enumerate(pool.expected(deviations=HOPE)[1:], start=1):
            cost = cost_of(running, running * (1 + self.num_nodes[depth]), depth, running * depth)
            if tokens * plain > plain + sure * (cost - plain):
                return True
        return False

    def other(self, depths: Mapping[int, int], rows: Mapping[int, RowState], turn: int, least: float) -> dict[int, int]:
        """Depths to try instead: all drafts whole if they end early, else one longer, shorter, or two longer, if the
        goodput expected of that is nearly ``least``; else none.

        What keeps them from being tried is doubted, so that one bad measurement does not rule them out for good.
        """
        if self.ends_early:
            return {row: rows[row].room if depth else 0 for row, depth in depths.items()}
        shift = (1, -1, 2)[turn % 3]
        other = {row: min(max(depth + shift, 1), rows[row].room) if depth else 0 for row, depth in depths.items()}
        step, cost_of = self._step(other, {row: self._work(rows[row]) for row in other}), self.knowledge.costs.of
        expected = step.speedup(cost_of)
        if other == depths:
            return {}
        if expected > NEARLY * least:
            return other
        self.knowledge.costs.doubt(StepWork(step.rows, step.nodes, step.deepest, step.drafted))
        return {}

    def first_probes(self, rows: Mapping[int, RowState], num_new: int) -> float:
        """What a step of ``rows`` costs more if the ``num_new`` among them that may draft probe; 0 without hope."""
        if not num_new or not self.hopes(rows):
            return 0.0
        running, costs = len(rows), self.knowledge.costs
        return costs.of(running, running + num_new * self.num_nodes[1], 1, num_new) - costs.plain(running)

    def probe_cost(self, num_rows: int, probing: Sequence[RowState]) -> float:
        """What a step of ``num_rows`` costs more than a plain one if some of them are ``probing``."""
        nodes = num_rows + sum(self.num_nodes[state.burst] for state in probing)
        depths = [state.burst for state in probing]
        costs = self.knowledge.costs
        reading = costs.catching_up(sum(state.missed for state in probing))
        return costs.of(num_rows, nodes, max(depths), sum(depths)) - costs.plain(num_rows) + reading
