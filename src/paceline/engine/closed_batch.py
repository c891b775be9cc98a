"""Batches that end: every row lasts for a known number of tokens, and no other request takes its place.

Such a batch takes as long as the row that ends last. Goodput counts the tokens of all rows alike, so it drafts most for
the rows of which most is accepted: these end early, and the others go on beside empty places. Here rows are to end
together: each drafts as little as lets it keep up with the one that cannot be faster.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, final

from paceline.engine.row_state import RowState

TOGETHER = 0.5  # steps within which rows count as ending at once
LEAST_GAIN = 0.01  # share of its steps that a further token must save a row to be looked at
CostOf: TypeAlias = Callable[[int, float, float, float], float]  # StepCosts.of


class DraftWork(NamedTuple):
    """What is expected of the draft of a row, and what it adds to a step; the root is counted."""

    tokens: float  # that the row gains
    nodes: float
    drafted: float


class Together(NamedTuple):
    """Depths with which rows end together, and how many times faster than plain decoding all of their steps are."""

    depths: dict[int, int]
    speedup: float


def end_together(rows: Mapping[int, RowState], work: Mapping[int, Sequence[DraftWork]], cost_of: CostOf) -> Together:
    """The fastest depths of those with which ``rows`` end together. ``work`` is that of their drafts by depth, from 0;
    ``cost_of`` is that of a step by its rows, nodes, deepest draft and drafted tokens.
    """
    steps = {row: [max(1.0, state.left / one.tokens) for one in work[row]] for row, state in rows.items()}
    plain = best_cost = _until_all_end(dict.fromkeys(rows, 0), steps, work, cost_of)
    best, last, least = dict.fromkeys(rows, 0), max(rows, key=lambda row: steps[row][-1]), float("inf")
    for enough in steps[last]:
        if enough > least * (1 - LEAST_GAIN):
            continue
        least = enough
        depths = {row: next(depth for depth, one in enumerate(steps[row]) if one <= enough) for row in rows}
        cost = _until_all_end(depths, steps, work, cost_of)
        if cost < best_cost:
            best, best_cost = depths, cost
    return Together(best, plain / best_cost)


def _until_all_end(
    depths: Mapping[int, int],
    steps: Mapping[int, Sequence[float]],
    work: Mapping[int, Sequence[DraftWork]],
    cost_of: CostOf,
) -> float:
    """What all steps cost, each row leaving when it ends."""
    ends = sorted(((steps[row][depth], row) for row, depth in depths.items()), reverse=True)
    cost = nodes = drafted = deepest = 0.0
    until = ends[0][0]
    for index, (_, row) in enumerate(ends):  # from the last one
        mine = work[row][depths[row]]
        nodes, drafted, deepest = nodes + mine.nodes, drafted + mine.drafted, max(deepest, mine.drafted)
        before = ends[index + 1][0] if index + 1 < len(ends) else 0.0
        if before and until - before < TOGETHER:
            continue
        cost += (until - before) * cost_of(index + 1, nodes, deepest, drafted)
        until = before
    return cost


@final
class Refills:
    """Whether other requests take the places of those that end: by what was seen last. At first none does."""

    def __init__(self) -> None:
        self.expected = False
        self._num_vacant = 0  # places of requests that ended

    def end(self, num_rows: int) -> None:
        """So many requests ended."""
        self._num_vacant += num_rows

    def begin(self, num_rows: int) -> None:
        """So many requests begin."""
        self.expected = self.expected or self._num_vacant > 0
        self._num_vacant = max(0, self._num_vacant - num_rows)

    def step(self) -> None:
        """A step is planned: who has not begun is not there."""
        if self._num_vacant:
            self.expected = False
