"""What a step costs by its nodes and the depth of its drafts, learnt from timed steps.

Costs are kept in units of a level that follows the machine: a longer context, another program or a lower clock makes
all steps slower alike, so that a figure that was measured long ago stays comparable with one measured now.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any, TypeAlias, final

from paceline.core.step import PhaseSeconds
from paceline.engine.curve import DISTURBED, WARM, Curve, quartile, surprise

FAST = 0.1  # rate at which the level follows what is measured
FIRST, COLD = 8, 2.0  # a step that is so many times faster than the first ones sets the level: those met cold caches
MOST_PLANNING = 1e-4  # seconds by which one disturbed measurement of it counts
# What a drafter takes to read tokens that it has missed, and for each of them, until it is measured. The first is of
# weights and caches that are cold by then.
FIRST_MISSED, CATCH_UP = 0.05, 0.002
ROW = 0.5  # nodes that a row counts like, beyond its own, until it is measured
REFRESH, REFRESH_SLOWER = 64, 4  # steps between two refreshes; one more after every so many, at first
MOST_NODES = 32  # of a row, that may be the best number
POWERS = tuple(2**power for power in range(16))
Line: TypeAlias = tuple[float, float, float, Sequence[float]]  # of Curve.line_beside
FOLLOW_PLAIN = 0.05  # rate at which what plain steps take is followed, once some were measured
READ_UNIT = 16  # tokens of prompts, which are counted in these
FEW_MISSED = 2  # missed tokens per drafted one, up to which a step tells what drafting costs, not catching up


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step does: its rows, the nodes of all of them, roots included, the deepest draft, and the tokens of all
    drafts.

    Of a draft that ended early counts the token that was not worth it, whose distribution was computed.
    """

    rows: int
    nodes: float
    depth: float = 0
    drafted: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthCost:
    """A step whose rows all draft ``depth`` tokens."""

    depth: int
    seconds: float
    break_even: float  # tokens per row and step from which it is faster than plain decoding
    expected: float  # tokens per row and step of a new request
    times_measured: int  # the forward of so many nodes; 0: interpolated or assumed


@final
class StepCosts:
    """Seconds of a step by its work. ``growth`` (of a forward, per node) is assumed until it is measured.

    The unit of all costs is the forward of one node, about; ``level`` is its seconds.
    """

    def __init__(self, *, growth: float) -> None:
        self.level = 0.0  # 0: nothing was measured
        self.growth = growth
        self.num_observed = self._refresh_at = 0
        # Of the nodes, and of the rows beyond the first; rest: deciding, reading results.
        self.score = Curve((1 - growth, growth, ROW * growth), grouped=True)
        self.rest = Curve((0.1 - 0.1 * growth, 0.1 * growth, 0.1 * ROW * growth), grouped=True)
        # Of the depth, and of the tokens that other rows draft meanwhile.
        self.draft = Curve((0.05, 0.1, 0.1 * growth))
        self.read = Curve((0.1, READ_UNIT * CATCH_UP, 0.0))  # of the prompts of requests that begin together
        self.missed = Curve((FIRST_MISSED, READ_UNIT * CATCH_UP, 0.0))  # of the tokens that the drafter has missed
        self.planning = 0.0  # seconds that the controller takes for a drafted step
        # By about how many rows: what plain steps took over what is expected of them, and how often that was measured.
        self._plain: dict[int, tuple[float, int]] = {}
        self._plain_costs: dict[int, float] = {}  # by rows, since the last refresh
        # By rows, likewise: of at most so many nodes, the forward and the rest; numbers of further nodes.
        self._lines: dict[int, tuple[int, Line, Line]] = {}
        self._powers: dict[int, list[tuple[int, float]]] = {}

    def __call__(self, work: StepWork) -> float:
        """The cost of a step in units of the level."""
        return self.of(work.rows, work.nodes, work.depth, work.drafted)

    def of(self, rows: int, nodes: float, depth: float = 0, drafted: float = 0.0) -> float:
        """The cost of a step with this work."""
        cost = self.verifying(rows, nodes)
        if not depth:
            return cost
        return cost + self.draft(depth, max(0.0, drafted - depth)) + (self.planning / self.level if self.level else 0.0)

    def plain(self, rows: int) -> float:
        """The cost of a plain step of so many rows."""
        known = self._plain_costs.get(rows)
        if known is None:
            known = self._plain_costs[rows] = self.of(rows, rows)
        return known

    def times_plain(self, rows: int) -> int:
        """How often plain steps of so many rows were measured."""
        return self.score.measured(rows, rows - 1)

    def plain_level(self, rows: int) -> float:
        """The level by plain steps of about so many rows alone, which others may be slower or faster than."""
        return self.level * self._plain.get(rows.bit_length(), (1.0, 0))[0]

    def reading(self, num_tokens: int) -> float:
        """The cost of a draft head's reading of so many tokens of prompts."""
        return self.read(ceil(num_tokens / READ_UNIT)) if num_tokens else 0.0

    def catching_up(self, missed: int) -> float:
        """The cost of a drafter's reading of so many tokens that it has missed, before it drafts."""
        return self.missed(_units(missed)) if missed else 0.0

    def verifying(self, rows: int, nodes: float) -> float:
        """The cost of a step without the drafting."""
        at, lines = int(nodes), self._lines.get(rows)
        if lines is None or at >= lines[0]:
            most, others = max(at + 1, (1 + MOST_NODES) * rows), rows - 1
            lines = most, self.score.line_beside(others, most), self.rest.line_beside(others, most)
            self._lines[rows] = lines
        _, (base, per_node, others, ratios), (rest, rest_per_node, rest_others, rest_ratios) = lines
        ratio, rest_ratio, part = ratios[at], rest_ratios[at], nodes - at
        if part:
            ratio += part * (ratios[at + 1] - ratio)
            rest_ratio += part * (rest_ratios[at + 1] - rest_ratio)
        score = (base + per_node * nodes + others) * ratio
        return score + (rest + rest_per_node * nodes + rest_others) * rest_ratio

    def least_rate(self, rows: int, *, speedup: float, fixed: float) -> float:
        """The share of further nodes that must be accepted for a step of ``rows`` rows to be ``speedup`` times better
        than a plain one, with whatever number of nodes that is least. ``fixed`` is the cost of having any.
        """
        costs = self._powers.get(rows)
        if costs is None:
            counts = POWERS[: (MOST_NODES * rows).bit_length()]
            costs = self._powers[rows] = [(count, self.verifying(rows, rows + count)) for count in counts]
        least = speedup / self.verifying(rows, rows)
        return min([rows * (least * (cost + fixed) - 1) / count for count, cost in costs])

    def share_unread(self, rows: int, seconds: PhaseSeconds) -> float:
        """What a plain step that took ``seconds``, of which a draft head read nothing, is of one that it reads.

        The forward is taken to be the same, for how long it takes says more of the machine's speed, which changes.
        """
        score = self.score(rows, rows - 1)
        return seconds.total / seconds.score * score / (score + self.rest(rows, rows - 1))

    def observe(self, work: StepWork, seconds: PhaseSeconds, *, missed: int = 0) -> None:
        """Learn from a step. ``missed`` tokens had to be read by the drafter first, beyond those of the step before.

        Such a step's forward meets cold caches, so it counts if it was faster than expected, or little else is known.
        """
        self.num_observed += 1
        if self.num_observed == 1:
            self.level = seconds.total / (self(work) + self.catching_up(missed))
        # The level follows what its curve follows, in the same way: else one would rise for good while the other falls.
        others = work.rows - 1
        known = self.score.measured(work.nodes, others) >= WARM
        cold = missed and known
        error = seconds.score / (self.score(work.nodes, others) * self.level)
        if self.num_observed <= FIRST and error < 1 / COLD:
            self.level *= error
        elif known and not cold:  # what is measured anew says nothing of the machine
            self.level *= 1 + FAST * surprise(error)
        level = self.level
        rest = seconds.decide + seconds.rest
        if not cold or error < 1:
            self.score.observe(work.nodes, seconds.score / level, others)
        if not work.depth:
            rest += seconds.draft
        elif missed <= FEW_MISSED * work.drafted:
            # The drafter is warm where it missed few tokens, so that each of these costs no more than itself.
            own = max(0.0, seconds.draft / level - self.missed.line[1] * missed / READ_UNIT)
            self.draft.observe(work.depth, own, work.drafted - work.depth)
        else:
            self.missed.observe(
                _units(missed), seconds.draft / level - self.draft(work.depth, work.drafted - work.depth)
            )
        if not cold or error < 1:
            self.rest.observe(work.nodes, rest / level, others)
        if self.num_observed >= self._refresh_at:
            self.refresh()

    def observe_plain(self, rows: int, seconds: PhaseSeconds) -> None:
        """Learn from a step of ``rows`` rows without a draft, after others like it."""
        self.observe(StepWork(rows, rows), seconds)
        known, times = self._plain.get(rows.bit_length(), (1.0, 0))
        over = min(seconds.total / (self.plain(rows) * self.level), DISTURBED)
        known += max(FOLLOW_PLAIN, 1 / (1 + times)) * (over - known)
        self._plain[rows.bit_length()] = known, times + 1

    def observe_prefill(self, num_tokens: int, seconds: float) -> None:
        """Note what a draft head took to read so many tokens of prompts."""
        if self.level and num_tokens:
            self.read.observe(ceil(num_tokens / READ_UNIT), seconds / self.level)
            self.read.refresh()

    def observe_planning(self, seconds: float) -> None:
        """Note what planning a drafted step, and learning from it, took beside the step."""
        self.planning += FAST * (min(seconds, DISTURBED * self.planning + MOST_PLANNING) - self.planning)

    def refresh(self) -> None:
        """Take all that was measured into account."""
        self._refresh_at = self.num_observed + min(REFRESH, 1 + self.num_observed // REFRESH_SLOWER)
        for curve in self._curves().values():
            curve.refresh()
        for known in (self._plain_costs, self._lines, self._powers):
            known.clear()

    def doubt(self, work: StepWork) -> None:
        """Believe less what was measured of such steps."""
        self.score.doubt(work.nodes, work.rows - 1)
        self.draft.doubt(work.depth, work.drafted - work.depth)

    @classmethod
    def fitted(cls, steps: Sequence[tuple[StepWork, PhaseSeconds]], *, growth: float) -> "StepCosts":
        """The lower quartiles of ``steps`` that were timed side by side, so that one level holds for all of them.

        That is the forward of the fewest nodes.
        """
        costs = cls(growth=growth)
        fewest = min(work.nodes for work, _ in steps)
        least = [taken.score / costs.score(fewest, work.rows - 1) for work, taken in steps if work.nodes == fewest]
        level = quartile(least)
        costs.level, costs.num_observed = level, len(steps)
        costs.score.fit((work.nodes, work.rows - 1, taken.score / level) for work, taken in steps)
        costs.rest.fit(
            (work.nodes, work.rows - 1, (taken.decide + taken.rest + (0.0 if work.depth else taken.draft)) / level)
            for work, taken in steps
        )
        costs.draft.fit(
            (work.depth, work.drafted - work.depth, taken.draft / level) for work, taken in steps if work.depth
        )
        return costs

    def seconds(self, work: StepWork) -> PhaseSeconds:
        """Seconds of a step; what comes after the forward is all in ``rest``."""
        others = work.rows - 1
        draft = self.draft(work.depth, work.drafted - work.depth) if work.depth else 0.0
        score, rest = self.score(work.nodes, others), self.rest(work.nodes, others)
        return PhaseSeconds(draft=self.level * draft, score=self.level * score, rest=self.level * rest)

    def as_record(self) -> dict[str, object]:
        """All that was learnt, for JSON."""
        return {
            "level": self.level,
            "growth": self.growth,
            **{name: curve.as_record() for name, curve in self._curves().items()},
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "StepCosts":
        """The costs that ``as_record`` gave. Raises KeyError, TypeError or ValueError for anything else."""
        costs = cls(growth=float(record["growth"]))
        costs.level = float(record["level"])  # followed by that of today's first steps
        if not (0 < costs.level < inf and 0 <= costs.growth < inf):
            raise ValueError("costs that cannot be")
        for name, curve in costs._curves().items():
            curve.load(record[name])
        return costs

    def _curves(self) -> dict[str, Curve]:
        curves = {"score": self.score, "rest": self.rest, "draft": self.draft}
        return {**curves, "read": self.read, "missed": self.missed}


def _units(missed: int) -> float:
    """What so many missed tokens count, of a curve whose counts begin at 1: that one is of a drafter that is cold."""
    return 1 + missed / READ_UNIT
