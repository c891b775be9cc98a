"""A cost over a count, learnt from measurements that other programs disturb.

Disturbances only lengthen a step. So a cost follows what is below it faster than what is above it, a smaller count
costs no more than a larger one, and a count that was measured seldom is believed less than its neighbours.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import exp, inf, log
from typing import final

SLOW = 0.03  # rate at which a cost follows its measurements
DOWN, UP = 1.5, 0.6  # by how much a measurement below and above what is known counts more or less
DISTURBED = 1.3  # a cost that was measured to be so many times what was known counts as no more, or a part of it
WARM = 4  # the least of so many first measurements counts: some are of cold caches
OWN_WEIGHT = 2.0  # measurements of a count that weigh as much as its neighbours' costs
SETTLED = 16  # measurements after which a count is looked at every so many
DOUBT = 0.5  # of the weight that is left to a count which promises little
QUARTILE = 0.25  # which of many timings of one kind counts
LEAST = 1e-6  # no cost is nothing
EXACT_COUNTS = 16  # counts up to this have an entry each, larger ones share one with those within a twelfth


@final
class Curve:
    """A cost over a count of at least 1: known where it was measured, elsewhere in proportion to ``prior``."""

    def __init__(self, prior: Callable[[float], float]) -> None:
        self.prior = prior
        self.known: dict[int, tuple[float, float]] = {}  # count -> cost over prior, and how often it was measured
        self._order: list[int] = []
        self._smooth: list[float] = []  # cost over prior, in that order
        self._stale = False

    def observe(self, count: float, cost: float) -> None:
        """Take a measurement into account."""
        key = _entry(count)
        measured = max(cost, LEAST) / self.prior(count)
        known, times = self.known.get(key, (measured, 0.0))
        if times == 0 and self._order:  # a single measurement that surprises is not believed whole
            known = min(measured, DISTURBED * self(count) / self.prior(count))
        elif times < WARM:
            known = min(measured, known)
        else:
            known *= 1 + max(SLOW, 1 / (times + 1)) * surprise(measured / known)
        self.known[key] = (known, times + 1)
        self._stale = self._stale or times < SETTLED or int(times) % SETTLED == 0

    def doubt(self, count: float) -> None:
        """Believe the cost of ``count`` less from now on: it may have been measured at a bad time."""
        ratio, times = self.known.get(_entry(count), (0.0, 0.0))
        if times:
            self.known[_entry(count)] = (ratio, max(1.0, DOUBT * times))
            self._stale = True

    def __call__(self, count: float) -> float:
        """The cost of ``count``; between measured counts the ratio to the prior is interpolated."""
        if self._stale:
            self._smooth_out()
        return self._interpolate(count, self._order, self._smooth) * self.prior(count)

    def measured(self, count: float) -> int:
        """How often the cost of ``count`` was measured."""
        return int(self.known.get(_entry(count), (0.0, 0.0))[1])

    def fit(self, costs: Iterable[tuple[float, float]]) -> None:
        """Know the lower quartiles of ``costs`` by their counts, and nothing else."""
        ratios: defaultdict[int, list[float]] = defaultdict(list)
        for count, cost in costs:
            ratios[_entry(count)].append(max(cost, LEAST) / self.prior(count))
        self.known = {count: (quartile(found), float(len(found))) for count, found in ratios.items()}
        self._stale = True

    def as_record(self) -> list[list[float]]:
        """What is known, for JSON: counts, their costs over the prior, and how often each was measured."""
        self._stale = True  # so that whoever loads it knows the same
        return [[count, ratio, times] for count, (ratio, times) in sorted(self.known.items())]

    def load(self, record: list[list[float]]) -> None:
        """Know what ``as_record`` gave, and nothing else. Raises ValueError for anything else."""
        if not all(len(entry) == 3 and entry[0] >= 1 and 0 <= entry[1] < inf and entry[2] >= 1 for entry in record):
            raise ValueError("costs that cannot be")
        self.known = {int(count): (float(ratio), float(times)) for count, ratio, times in record}
        self._stale = True

    def _smooth_out(self) -> None:
        """Each measured count by its own measurements and its neighbours'."""
        self._stale = False
        order = self._order = sorted(self.known)
        ratios = [self.known[key][0] for key in order]
        self._smooth = smooth = list(ratios)
        if len(order) > 1:
            for at, key in enumerate(order):
                times = self.known[key][1]
                near = max(self.known[other][1] for other in order[max(0, at - 1) : at + 2] if other != key)
                if times < near:  # else the neighbours know no better
                    around = self._interpolate(key, order[:at] + order[at + 1 :], ratios[:at] + ratios[at + 1 :])
                    smooth[at] = (times * ratios[at] + OWN_WEIGHT * around) / (times + OWN_WEIGHT)
        least = float("inf")
        for at in range(len(order) - 1, -1, -1):
            prior = self.prior(order[at])
            least = min(least, smooth[at] * prior)
            smooth[at] = least / prior

    def _interpolate(self, count: float, order: list[int], ratios: list[float]) -> float:
        if not order:
            return 1.0
        at = bisect_right(order, count)
        if at == 0 or at == len(order) or order[at - 1] == count:
            return ratios[max(0, at - 1)]
        one, other = order[at - 1], order[at]
        share = log(count / one) / log(other / one)
        return (1 - share) * ratios[at - 1] + share * ratios[at]


def quartile(values: Sequence[float]) -> float:
    """The lower quartile of some values."""
    return sorted(values)[int(QUARTILE * len(values))]


def surprise(ratio: float) -> float:
    """By what share of what is known a measurement, ``ratio`` times that, counts."""
    return UP * (min(ratio, DISTURBED) - 1) if ratio > 1 else DOWN * (max(ratio, 1 / DISTURBED) - 1)


def _entry(count: float) -> int:
    """The count whose entry ``count`` shares."""
    return round(count) if count < EXACT_COUNTS + 0.5 else round(exp(round(12 * log(count)) / 12))
