"""What a step costs by its nodes and the depth of its drafts, learnt from timed steps.

Costs are kept in units of a level that follows the machine: a longer context, another program or a lower clock makes
all steps slower alike, so that a figure that was measured long ago stays comparable with one measured now.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, final

from paceline.core.step import PhaseSeconds
from paceline.engine.curve import DISTURBED, Curve, quartile, surprise

FAST = 0.1  # rate at which the level follows what is measured
FIRST, COLD = 8, 2.0  # a step that is so many times faster than the first ones sets the level: those met cold caches
CATCH_UP = 0.002  # of a token that the drafter has missed, until it is measured
SEVERAL = 1.5  # rows from which on a draft tells what further rows cost
FEW_MISSED = 2  # missed tokens per drafted one, up to which a step tells what drafting costs, not catching up


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step does: the nodes of all rows, roots included, the deepest draft, and the tokens of all drafts.

    Of a draft that ended early counts the token that was not worth it, whose distribution was computed.
    """

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
        self.draft_growth = growth  # of drafting, for each row beyond the first
        self._times_grown = 0  # steps that it was measured in
        self.num_observed = 0
        self.score = Curve(lambda nodes: 1 + growth * (nodes - 1))
        self.rest = Curve(lambda nodes: 0.1 + 0.1 * growth * (nodes - 1))  # deciding, reading results
        self.draft = Curve(lambda depth: 0.05 + 0.1 * depth)
        self.catch_up = CATCH_UP  # per token that the drafter has missed
        self._caught_up = 0  # times it was measured

    def __call__(self, work: StepWork) -> float:
        """The cost of a step in units of the level."""
        cost = self.score(work.nodes) + self.rest(work.nodes)
        if work.depth:
            cost += self.draft(work.depth) * self._rows_factor(work)
        return cost

    def observe(self, work: StepWork, seconds: PhaseSeconds, *, missed: int = 0) -> None:
        """Learn from a step. ``missed`` tokens had to be read by the drafter first, beyond those of the step before."""
        self.num_observed += 1
        catching_up = self.catch_up * missed
        if self.num_observed == 1:
            self.level = seconds.total / (self(work) + catching_up)
        # The level follows what its curve follows, in the same way: else one would rise for good while the other falls.
        error = seconds.score / (self.score(work.nodes) * self.level)
        if self.num_observed <= FIRST and error < 1 / COLD:
            self.level *= error
        else:
            self.level *= 1 + FAST * surprise(error)
        level = self.level
        self.score.observe(work.nodes, seconds.score / level)
        rest = seconds.decide + seconds.rest
        if not work.depth:
            rest += seconds.draft
        elif missed <= FEW_MISSED * work.drafted:
            self._learn_draft(work, max(0.0, seconds.draft / level - catching_up))
        else:
            over = max(0.0, seconds.draft / level - self.draft(work.depth) * self._rows_factor(work))
            self._caught_up += 1
            rate = max(FAST, 1 / self._caught_up)
            self.catch_up += rate * (min(over / missed, DISTURBED * self.catch_up + CATCH_UP) - self.catch_up)
        self.rest.observe(work.nodes, rest / level)

    def _learn_draft(self, work: StepWork, cost: float) -> None:
        """Learn from a draft: of about one row what its depth costs, of several rows what the others add to that."""
        rows, known = work.drafted / work.depth, self._rows_factor(work)
        if rows < SEVERAL or not self.draft.known:
            self.draft.observe(work.depth, cost / known)
            return
        self._times_grown += 1
        rate = max(FAST, 1 / self._times_grown)
        factor = known * (1 + rate * surprise(cost / (known * self.draft(work.depth))))
        self.draft_growth = max(0.0, (factor - 1) / (rows - 1))

    def doubt(self, work: StepWork) -> None:
        """Believe less what was measured of such steps."""
        self.score.doubt(work.nodes)
        self.draft.doubt(work.depth)

    @classmethod
    def fitted(cls, steps: Sequence[tuple[StepWork, PhaseSeconds]], *, growth: float) -> "StepCosts":
        """The lower quartiles of ``steps`` that were timed side by side, so that one level holds for all of them.

        That is the forward of the fewest nodes. What drafting costs is taken from the steps of the fewest rows.
        """
        costs = cls(growth=growth)
        fewest = min(work.nodes for work, _ in steps)
        level = quartile([taken.score / costs.score.prior(fewest) for work, taken in steps if work.nodes == fewest])
        rows = min((work.drafted / work.depth for work, _ in steps if work.depth), default=0)
        costs.level, costs.num_observed = level, len(steps)
        costs.score.fit((work.nodes, taken.score / level) for work, taken in steps)
        costs.rest.fit(
            (work.nodes, (taken.decide + taken.rest + (0.0 if work.depth else taken.draft)) / level)
            for work, taken in steps
        )
        costs.draft.fit(
            (work.depth, taken.draft / level / costs._rows_factor(work))
            for work, taken in steps
            if work.depth and work.drafted / work.depth == rows
        )
        for work, taken in steps:
            if work.depth and work.drafted / work.depth > rows:
                costs._learn_draft(work, taken.draft / level)
        return costs

    def seconds(self, work: StepWork) -> PhaseSeconds:
        """Seconds of a step; what comes after the forward is all in ``rest``."""
        draft = self.draft(work.depth) * self._rows_factor(work) if work.depth else 0.0
        score, rest = self.score(work.nodes), self.rest(work.nodes)
        return PhaseSeconds(draft=self.level * draft, score=self.level * score, rest=self.level * rest)

    def as_record(self) -> dict[str, object]:
        """All that was learnt, for JSON."""
        return {
            "level": self.level,
            "growth": self.growth,
            "draft_growth": self.draft_growth,
            "catch_up": self.catch_up,
            "times_caught_up": self._caught_up,
            **{name: curve.as_record() for name, curve in self._curves().items()},
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "StepCosts":
        """The costs that ``as_record`` gave. Raises KeyError, TypeError or ValueError for anything else."""
        costs = cls(growth=float(record["growth"]))
        costs.level, costs.catch_up = float(record["level"]), float(record["catch_up"])
        costs.draft_growth = float(record["draft_growth"])
        costs._caught_up = int(record["times_caught_up"])  # the level is that of today's first steps
        factors = (costs.catch_up, costs.growth, costs.draft_growth)
        if not (0 < costs.level < inf and all(0 <= factor < inf for factor in factors)):
            raise ValueError("costs that cannot be")
        for name, curve in costs._curves().items():
            curve.load(record[name])
        return costs

    def _curves(self) -> dict[str, Curve]:
        return {"score": self.score, "rest": self.rest, "draft": self.draft}

    def _rows_factor(self, work: StepWork) -> float:
        """How much longer a draft takes for several rows than for one."""
        return 1 + self.draft_growth * max(0.0, work.drafted / work.depth - 1)
