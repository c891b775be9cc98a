"""Batches that end: every row lasts for a known number of tokens, and no other request takes its place.

Such a batch takes as long as the row that ends last. Goodput counts the tokens of all rows alike, so it drafts most for
the rows of which most is accepted: these end early, and the others go on beside empty places. Here rows are to end
together: each drafts as little as lets it keep up with the one that cannot be faster.

What a draft gains is chance, so that rows which are expected to end together do not: the last of them ends later than
any of them is expected to.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from statistics import NormalDist
from typing import NamedTuple, final

from paceline.engine.draft_work import CostOf, DraftWork, StepDrafts
from paceline.engine.row_state import RowState

TOGETHER = 0.5  # steps within which rows count as ending at once
GATHERING = 16  # steps at most in which requests that will join a batch are waited for
LEAST_SAVED = 0.05  # share of its steps that a further token must save a row to be looked at


class Together(NamedTuple):
    """Depths with which rows end together, and how many times faster than plain decoding all of their steps are."""

    depths: dict[int, int]
    speedup: float


def end_together(rows: Mapping[int, RowState], work: Mapping[int, Sequence[DraftWork]], cost_of: CostOf) -> Together:
    """The fastest depths of those with which ``rows`` end together. ``work`` is that of their drafts by depth, from 0;
    ``cost_of`` is that of a step by its rows, nodes, deepest draft and drafted tokens.
    """
    ends = {row: [_End.of(state.left, one) for one in work[row]] for row, state in rows.items()}
    plain = best_cost = _until_all_end(dict.fromkeys(rows, 0), ends, work, cost_of)
    best, last, least = dict.fromkeys(rows, 0), max(rows, key=lambda row: ends[row][-1].steps), float("inf")
    for enough, _ in ends[last]:
        if enough > least * (1 - LEAST_SAVED):
            continue
        least = enough
        depths = {row: next(depth for depth, end in enumerate(ends[row]) if end.steps <= enough) for row in rows}
        cost = _until_all_end(depths, ends, work, cost_of)
        if cost < best_cost:
            best, best_cost = depths, cost
    return Together(best, plain / best_cost)


class _End(NamedTuple):
    """After how many steps a row is expected to end."""

    steps: float
    variance: float

    @classmethod
    def of(cls, left: int, work: DraftWork) -> "_End":
        """With the same draft in every step."""
        return cls(max(1.0, left / work.tokens), left * work.variance / work.tokens**3)


def _until_all_end(
    depths: Mapping[int, int],
    ends: Mapping[int, Sequence[_End]],
    work: Mapping[int, Sequence[DraftWork]],
    cost_of: CostOf,
) -> float:
    """What all steps cost, each row leaving when it ends."""
    rows = sorted(depths, key=lambda row: ends[row][depths[row]].steps, reverse=True)
    steps = _in_order([ends[row][depths[row]] for row in rows])
    step, cost, until = StepDrafts(), 0.0, steps[0]
    for index, row in enumerate(rows):  # from the last one
        step.add_row(work[row], depths[row])
        before = steps[index + 1] if index + 1 < len(rows) else 0.0
        if before and until - before < TOGETHER:
            continue
        cost += (until - before) * step.cost(cost_of)
        until = before
    return cost


def _in_order(ends: Sequence[_End]) -> list[float]:
    """When the last row ends, the last but one, and so on, by when each of them is expected to; the latest comes first.

    Those that are expected at the same time come apart by chance, others hardly.
    """
    steps, variance = [end.steps for end in ends], sum(end.variance for end in ends) / len(ends)
    if not variance or len(ends) == 1:
        return steps
    mean = sum(steps) / len(steps)
    seen = sum((one - mean) ** 2 for one in steps) / len(steps)
    apart = variance / (variance + seen) ** 0.5
    return [max(1.0, one + apart * place) for one, place in zip(steps, _places(len(ends)), strict=True)]


@cache
def _places(count: int) -> list[float]:
    """Where so many samples of a normal distribution are expected, from the highest one: Blom's approximation."""
    normal = NormalDist()
    return [normal.inv_cdf((count - index - 0.375) / (count + 0.25)) for index in range(count)]


@final
class Refills:
    """Whether other requests take the places of those that end: by what was seen last. At first none does."""

    def __init__(self) -> None:
        self.expected = False
        self._num_vacant = 0  # places of requests that ended
        # Steps in which requests that will join are waited for. They are plain: few rows draft as the whole batch does
        # not, and what that takes is not to be learnt from a few steps.
        self.gathering = 0

    def end(self, num_rows: int) -> None:
        """So many requests ended."""
        self._num_vacant += num_rows

    def begin(self, num_rows: int, *, waiting: int = 0) -> None:
        """So many requests begin, and ``waiting`` others will join them."""
        self.gathering = GATHERING if waiting else 0
        self.expected = self.expected or self._num_vacant > 0
        self._num_vacant = max(0, self._num_vacant - num_rows)

    def step(self) -> bool:
        """A step is planned: who has not begun is not there. Whether others are waited for."""
        gathering = self.gathering > 0
        self.gathering -= gathering
        if self._num_vacant:
            self.expected = False
        return gathering
