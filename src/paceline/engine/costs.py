"""What a step costs by its nodes and the depth of its drafts, learnt from timed steps.

Costs are kept in units of a level that follows the machine: a longer context, another program or a lower clock makes
all steps slower alike, so that a figure that was measured long ago stays comparable with one measured now.
"""

from dataclasses import dataclass
from typing import final

from paceline.core.step import PhaseSeconds
from paceline.engine.curve import DISTURBED, Curve, surprise

FAST = 0.1  # rate at which the level follows what is measured
FIRST, COLD = 8, 2.0  # a step that is so many times faster than the first ones sets the level: those met cold caches
CATCH_UP = 0.002  # of a token that the drafter has missed, until it is measured
FEW_MISSED = 2  # missed tokens per drafted one, up to which a step tells what drafting costs, not catching up


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step does: the nodes of all rows, roots included, the deepest draft, and the draft tokens asked for."""

    nodes: float
    depth: int = 0
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
        if not self.level:
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
            own = max(0.0, seconds.draft / level - catching_up)
            self.draft.observe(work.depth, own / self._rows_factor(work))
        else:
            over = max(0.0, seconds.draft / level - self.draft(work.depth) * self._rows_factor(work))
            self._caught_up += 1
            rate = max(FAST, 1 / self._caught_up)
            self.catch_up += rate * (min(over / missed, DISTURBED * self.catch_up + CATCH_UP) - self.catch_up)
        self.rest.observe(work.nodes, rest / level)

    def doubt(self, work: StepWork) -> None:
        """Believe less what was measured of such steps."""
        self.score.doubt(work.nodes)
        self.draft.doubt(work.depth)

    def _rows_factor(self, work: StepWork) -> float:
        """How much longer a draft takes for several rows than for one."""
        return 1 + self.growth * max(0.0, work.drafted / work.depth - 1)
