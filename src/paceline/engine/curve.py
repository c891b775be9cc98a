"""A cost over two counts, learnt from measurements that other programs disturb.

Disturbances only lengthen a step. So a cost follows what is below it faster than what is above it, and a count that was
measured seldom is believed less than what the others say of it.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import exp, inf, log
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

SLOW = 0.1  # rate at which a cost follows its measurements
DOWN, UP = 1.5, 0.6  # by how much a measurement below and above what is known counts more or less
DISTURBED = 1.3  # a cost that was measured to be so many times what was known counts as no more, or a part of it
WARM = 4  # first measurements of a count, of which the mean counts
COLD = 64  # first measurements of all, of which the least counts instead: some are of cold caches
OWN_WEIGHT = 2.0  # measurements of a count that weigh as much as the line
SETTLED = 16  # measurements of a count from which on further ones weigh no more
DOUBT = 0.5  # of the weight that is left to a count which promises little
QUARTILE = 0.25  # which of many timings of one kind counts
SPREAD = 0.05  # of a measurement, as a share of it
LEAST_SPREAD = 0.5  # what it is at least a share of: this share of the mean measurement
FIRST_SPREAD = 1.0  # of the first line, likewise
LEAST = 1e-6  # no cost is nothing
EXACT_COUNTS = 16  # counts up to this have an entry each, larger ones share one with those within a twelfth
Floats: TypeAlias = NDArray[np.float64]


@final
class Curve:
    """A cost over a count of at least 1 and over what is ``beside`` it, a second count of at least 0.

    ``line`` is what is assumed at first: the cost of nothing, of one of the count, and of one of what is beside it.
    What is measured moves the line, and each count away from it; with ``grouped`` those of one count beside by
    themselves.
    """

    def __init__(self, line: tuple[float, float, float], *, grouped: bool = False) -> None:
        self.first_line = self.line = line
        self.grouped = grouped
        self._num_observed = 0
        self._changed = False  # since the last refresh
        self.known: dict[tuple[int, int], tuple[float, float]] = {}  # (count, beside) -> cost, and how often measured
        # By group: counts, and their costs over those of the line; the latter also for every count that was asked for.
        self._ratios: dict[int, tuple[list[int], list[float]]] = {}
        self._tables: dict[int, list[float]] = {}

    def observe(self, count: float, cost: float, beside: float = 0.0) -> None:
        """Take a measurement into account, from the next ``refresh`` on."""
        key = (_entry(count), _entry(beside))
        measured = max(cost, LEAST) * self._linear(*key) / self._linear(count, beside)
        known, times = self.known.get(key, (measured, 0.0))
        if times == 0 and self.known:  # a single measurement that surprises is not believed whole
            known = min(measured, DISTURBED * self(*key))
        elif times < WARM:
            measured = min(measured, DISTURBED * known)
            known = min(measured, known) if self._num_observed < COLD else known + (measured - known) / (times + 1)
        else:
            known *= 1 + max(SLOW, 1 / (times + 1)) * surprise(measured / known)
        self.known[key] = (known, times + 1)
        self._num_observed, self._changed = self._num_observed + 1, True

    def doubt(self, count: float, beside: float = 0.0) -> None:
        """Believe the cost of ``count`` less from now on: it may have been measured at a bad time."""
        key = (_entry(count), _entry(beside))
        cost, times = self.known.get(key, (0.0, 0.0))
        if times:
            self.known[key], self._changed = (cost, max(1.0, DOUBT * times)), True

    def __call__(self, count: float, beside: float = 0.0) -> float:
        """The cost of ``count``, by what was measured before the last ``refresh``."""
        base, per_count, per_beside = self.line
        group = _entry(beside) if self.grouped else 0
        at, table = int(count), self._tables.get(group)
        if table is None or at + 1 >= len(table):
            table = self._fill(group, at + 1)
        ratio = table[at]
        ratio += (count - at) * (table[at + 1] - ratio)
        return (base + per_count * count + per_beside * beside) * ratio

    def line_beside(self, beside: int, last: int) -> tuple[float, float, float, Sequence[float]]:
        """What whole counts up to ``last`` cost by the last ``refresh``, for callers that ask for many.

        The cost of nothing, of one of the count, and of what is ``beside`` it, whose sum counts times the ratio that
        stands at the count.
        """
        base, per_count, per_beside = self.line
        return base, per_count, per_beside * beside, self._fill(_entry(beside) if self.grouped else 0, last)

    def measured(self, count: float, beside: float = 0.0) -> int:
        """How often the cost of ``count`` was measured."""
        return int(self.known.get((_entry(count), _entry(beside)), (0.0, 0.0))[1])

    def fit(self, costs: Iterable[tuple[float, float, float]]) -> None:
        """Know the lower quartiles of costs, given as (count, beside, cost), and nothing else."""
        found: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
        for count, beside, cost in costs:
            key = (_entry(count), _entry(beside))
            found[key].append(max(cost, LEAST) * self._linear(*key) / self._linear(count, beside))
        self.known = {key: (quartile(several), float(len(several))) for key, several in found.items()}
        self._changed = True
        self.refresh()

    def as_record(self) -> list[list[float]]:
        """What is known, for JSON: both counts, their costs, and how often each was measured."""
        return [[*key, cost, times] for key, (cost, times) in sorted(self.known.items())]

    def load(self, record: list[list[float]]) -> None:
        """Know what ``as_record`` gave, and nothing else. Raises ValueError for anything else."""
        for count, beside, cost, times in record:
            if not (count >= 1 and beside >= 0 and 0 < cost < inf and times >= 1):
                raise ValueError("costs that cannot be")
        self.known = {(int(count), int(beside)): (float(cost), float(times)) for count, beside, cost, times in record}
        self._changed = True
        self.refresh()

    def refresh(self) -> None:
        """Take what was measured into account."""
        if not self._changed or not self.known:
            return
        self._changed = False
        self._fit_line()
        # By group and count: sums of costs and of those of the line, as often as they were measured, and how often.
        groups: defaultdict[int, dict[int, tuple[float, float, float]]] = defaultdict(dict)
        for (count, beside), (cost, times) in sorted(self.known.items()):
            group = groups[beside if self.grouped else 0]
            costs, lines, weight = group.get(count, (0.0, 0.0, 0.0))
            group[count] = costs + times * cost, lines + times * self._linear(count, beside), weight + times
        self._ratios.clear()
        self._tables.clear()
        for group, counts in groups.items():
            believed = [
                (weight * costs / lines + OWN_WEIGHT) / (weight + OWN_WEIGHT)
                for costs, lines, weight in counts.values()
            ]
            self._ratios[group] = (list(counts), believed)

    def _linear(self, count: float, beside: float) -> float:
        base, per_count, per_beside = self.line
        return base + per_count * count + per_beside * beside

    def _fit_line(self) -> None:
        """The line by weighted least squares, without negative parts; the first one counts as a measurement."""
        size = len(self.first_line)
        prior = [(FIRST_SPREAD * max(part, LEAST)) ** -2 for part in self.first_line]
        sums = [[prior[i] if i == j else 0.0 for j in range(size)] for i in range(size)]
        wanted = [weight * part for weight, part in zip(prior, self.first_line, strict=True)]
        least = LEAST_SPREAD * sum(cost for cost, _ in self.known.values()) / len(self.known)
        for (count, beside), (cost, times) in self.known.items():
            line, weight = (1.0, count, beside), min(times, SETTLED) / (SPREAD * max(cost, least)) ** 2
            for i, part in enumerate(line):
                wanted[i] += weight * part * cost
                for j, other in enumerate(line):
                    sums[i][j] += weight * part * other
        self.line = _solve_not_negative(np.array(sums), np.array(wanted))

    def _fill(self, group: int, last: int) -> list[float]:
        """The ratios of a group by count, up to ``last`` at least; between known counts they are interpolated."""
        counts, ratios = self._ratios.get(group, ([1], [1.0]))
        table = self._tables.setdefault(group, [])
        while len(table) <= last:
            count = len(table)
            at = bisect_right(counts, count)
            if at == len(counts):
                table += ratios[-1:] * (last + 1 - count)
            elif at == 0:
                table.append(ratios[0])
            else:
                share = (count - counts[at - 1]) / (counts[at] - counts[at - 1])
                table.append((1 - share) * ratios[at - 1] + share * ratios[at])
        return table


def quartile(values: Sequence[float]) -> float:
    """The lower quartile of some values."""
    return sorted(values)[int(QUARTILE * len(values))]


def surprise(ratio: float) -> float:
    """By what share of what is known a measurement, ``ratio`` times that, counts."""
    return UP * (min(ratio, DISTURBED) - 1) if ratio > 1 else DOWN * (max(ratio, 1 / DISTURBED) - 1)


def _entry(count: float) -> int:
    """The count whose entry ``count`` shares."""
    return round(count) if count < EXACT_COUNTS + 0.5 else round(exp(round(12 * log(count)) / 12))


def _solve_not_negative(sums: Floats, wanted: Floats) -> tuple[float, float, float]:
    """The three parts of a line of which ``sums`` [3, 3] times the parts is ``wanted`` [3], none below LEAST."""
    found, free = np.full(len(wanted), LEAST), np.full(len(wanted), True)
    while free.any():  # without a part that would be negative the others are others
        found[free] = np.linalg.solve(sums[free][:, free], wanted[free] - sums[free][:, ~free] @ found[~free])
        if found.min() >= LEAST:
            break
        lowest = found.argmin()
        free[lowest], found[lowest] = False, LEAST
    base, per_count, per_beside = map(float, found)
    return base, per_count, per_beside
