"""What a step costs by its nodes and the depth of its drafts, learnt from timed steps.

Costs are kept in units of a level that follows the machine: a longer context, another program or a lower clock makes
all steps slower alike, so that a figure that was measured long ago stays comparable with one measured now.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log
from typing import Any, final

from paceline.core.step import PhaseSeconds

FAST, SLOW = 0.1, 0.05  # rates at which the level and the costs follow what is measured
DISTURBED = 1.3  # a cost that was measured to be so many times what was known counts as no more
WARM = 3  # the least of so many first measurements counts: some are of cold caches
CATCH_UP = 0.002  # of a token that the drafter has missed, until it is measured
FEW_MISSED = 2  # missed tokens per drafted one, up to which a step tells what drafting costs, not catching up
QUARTILE = 0.25  # which of many timings of one kind counts: other programs only make steps slower
EXACT_COUNTS = 16  # counts up to this have an entry each, larger ones share one with those within a twelfth


@final
class Curve:
    """A cost over a count of at least 1: known where it was measured, elsewhere in proportion to ``prior``."""

    def __init__(self, prior: Callable[[float], float]) -> None:
        self.prior = prior
        self.known: dict[int, tuple[float, int]] = {}  # count -> cost over prior, and how often it was measured
        self._order: list[int] = []
        self._first: dict[int, float] = {}  # the least of the first measurements

    def observe(self, count: float, cost: float) -> None:
        """Take a measurement into account."""
        key = _entry(count)
        ratio = cost / self.prior(count)
        known, times = self.known.get(key, (ratio, 0))
        if times == 0:
            self._first[key] = ratio
            if self._order:  # a single measurement that surprises is not believed whole
                ratio = min(ratio, DISTURBED * self(count) / self.prior(count))
            self._order = sorted([*self.known, key])
        elif times < WARM:
            ratio = self._first[key] = min(ratio, self._first.get(key, ratio))
        else:
            ratio = known + max(SLOW, 1 / (times + 1)) * (min(ratio, DISTURBED * known) - known)
        self.known[key] = (ratio, times + 1)

    def __call__(self, count: float) -> float:
        """The cost of ``count``; between measured counts the ratio to the prior is interpolated."""
        exact = self.known.get(count)  # pyright: ignore[reportArgumentType] - a float equal to a key finds it
        if exact is not None:
            return exact[0] * self.prior(count)
        order = self._order
        if not order:
            return self.prior(count)
        at = bisect_right(order, count)
        if at in (0, len(order)):
            ratio = self.known[order[0 if at == 0 else -1]][0]
        else:
            one, other = order[at - 1], order[at]
            share = log(count / one) / log(other / one)
            ratio = (1 - share) * self.known[one][0] + share * self.known[other][0]
        return ratio * self.prior(count)

    def measured(self, count: float) -> int:
        """How often the cost of ``count`` was measured."""
        return self.known.get(_entry(count), (0.0, 0))[1]

    def fit(self, costs: Iterable[tuple[float, float]]) -> None:
        """Know the lower quartiles of ``costs`` by their counts, and nothing else."""
        ratios: defaultdict[int, list[float]] = defaultdict(list)
        for count, cost in costs:
            ratios[_entry(count)].append(cost / self.prior(count))
        self.known = {count: (quartile(found), len(found)) for count, found in ratios.items()}
        self._first, self._order = {}, sorted(self.known)

    def as_record(self) -> list[list[float]]:
        """What is known, for JSON: counts, their costs over the prior, and how often each was measured."""
        return [[count, ratio, times] for count, (ratio, times) in sorted(self.known.items())]

    def load(self, record: list[list[float]]) -> None:
        """Know what ``as_record`` gave, and nothing else. Raises ValueError for anything else."""
        if not all(len(entry) == 3 and entry[0] >= 1 and 0 <= entry[1] < inf and entry[2] >= 1 for entry in record):
            raise ValueError("costs that cannot be")
        self.known = {int(count): (float(ratio), int(times)) for count, ratio, times in record}
        self._first, self._order = {}, sorted(self.known)


def quartile(values: Sequence[float]) -> float:
    """The lower quartile of some values."""
    return sorted(values)[int(QUARTILE * len(values))]


def _entry(count: float) -> int:
    """The count whose entry ``count`` shares."""
    return round(count) if count < EXACT_COUNTS + 0.5 else round(exp(round(12 * log(count)) / 12))


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
        expected = self(work) + catching_up
        total = seconds.total
        if not self.level:
            self.level = total / expected
        error = total / (expected * self.level)
        rate = max(FAST, 1 / self.num_observed)
        self.level *= 1 + rate * (min(max(error, 1 / DISTURBED), DISTURBED) - 1)
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
            "num_observed": self.num_observed,
            "catch_up": self.catch_up,
            "times_caught_up": self._caught_up,
            **{name: curve.as_record() for name, curve in self._curves().items()},
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "StepCosts":
        """The costs that ``as_record`` gave. Raises KeyError, TypeError or ValueError for anything else."""
        costs = cls(growth=float(record["growth"]))
        costs.level, costs.catch_up = float(record["level"]), float(record["catch_up"])
        costs.num_observed, costs._caught_up = int(record["num_observed"]), int(record["times_caught_up"])
        if not (0 < costs.level < inf and 0 <= costs.catch_up < inf and 0 <= costs.growth < inf):
            raise ValueError("costs that cannot be")
        for name, curve in costs._curves().items():
            curve.load(record[name])
        return costs

    def _curves(self) -> dict[str, Curve]:
        return {"score": self.score, "rest": self.rest, "draft": self.draft}

    def _rows_factor(self, work: StepWork) -> float:
        """How much longer a draft takes for several rows than for one."""
        return 1 + self.growth * max(0.0, work.drafted / work.depth - 1)
