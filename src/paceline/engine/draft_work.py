"""What drafts are expected to gain and to do: those of a row by their depth, and those of a step together."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, final

from paceline.engine.row_state import RowState

CostOf: TypeAlias = Callable[[int, float, float, float], float]  # StepCosts.of


class DraftWork(NamedTuple):
    """Of the draft of a row, its root included."""

    tokens: float  # that the row gains
    variance: float  # of these
    nodes: float
    drafted: float


def work_by_depth(
    state: RowState, num_nodes: Sequence[int], *, num_unverified: int, ends_early: bool
) -> list[DraftWork]:
    """Of the drafts of a row by their depth, from 0; the options are those of Goodput."""
    tokens, squared, nodes, drafted = 1.0, 0.0, 1.0, 0.0  # squared: of the accepted tokens
    found = [DraftWork(tokens, 0.0, nodes, drafted)]
    drafts = submits = 1.0  # shares of the chains in which a token is drafted, and submitted
    for index, alive in enumerate(state.survival[: state.room]):
        if ends_early:
            reached = state.pool.reached
            drafts, submits = reached[index - 1] if index else 1.0, reached[index]
        tokens += state.offers * alive
        squared += (2 * index + 1) * state.offers * alive
        nodes += submits * state.offers * (num_nodes[index + 1] - num_nodes[index])
        if index == 0:
            nodes += (1.0 - submits * state.offers) * num_unverified
        drafted += drafts
        found.append(DraftWork(tokens, squared - (tokens - 1) ** 2, nodes, drafted))
    return found


@final
class StepDrafts:
    """Of a step, whose rows are added one by one; drafts are at most ``max_depth`` deep."""

    def __init__(self, max_depth: int) -> None:
        self.rows, self.tokens, self.nodes, self.drafted = 0, 0.0, 0.0, 0.0
        self.deepest = 0.0  # forwards of the drafter: rows are drafted for together
        self._missing = [1.0] * max_depth  # shares of the steps that draft no token at a depth, from 1

    def add_row(self, work: Sequence[DraftWork], depth: int) -> None:
        """A row with the draft that is ``depth`` deep."""
        whole, missing, before = work[depth], self._missing, 0.0
        self.rows, self.drafted = self.rows + 1, self.drafted + whole.drafted
        self.tokens, self.nodes = self.tokens + whole.tokens, self.nodes + whole.nodes
        for index in range(depth):
            drafted = work[index + 1].drafted
            drafts = drafted - before
            self.deepest += drafts * missing[index]
            missing[index] *= 1.0 - drafts
            before = drafted

    def cost(self, cost_of: CostOf) -> float:
        """Of the step."""
        return cost_of(self.rows, self.nodes, self.deepest, self.drafted)

    def speedup(self, cost_of: CostOf) -> float:
        """Its goodput over that of plain decoding."""
        return self.tokens / self.rows * cost_of(self.rows, self.rows, 0, 0) / self.cost(cost_of)

    def least(self, cost_of: CostOf, depth: int) -> float:
        """The chance to be accepted from which the last token of a row, at ``depth``, is worth what it costs: a node,
        and the drafter's forward in the share of steps in which no row drafts so deep.
        """
        deepest, cost = max(self.deepest - self._missing[depth - 1], min(self.deepest, 1.0)), self.cost(cost_of)
        return max(0.0, cost - cost_of(self.rows, self.nodes - 1, deepest, self.drafted - 1)) * self.tokens / cost
