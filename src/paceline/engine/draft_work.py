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


def work_by_depth(state: RowState, num_nodes: Sequence[int], *, num_unverified: int) -> list[DraftWork]:
    """Of the whole drafts of a row by their depth, from 0; the options are those of Goodput."""
    tokens, squared, nodes = 1.0, 0.0, 1.0  # squared: of the accepted tokens
    found = [DraftWork(tokens, 0.0, nodes)]
    for index, alive in enumerate(state.survival[: state.room]):
        tokens += state.offers * alive
        squared += (2 * index + 1) * state.offers * alive
        nodes += state.offers * (num_nodes[index + 1] - num_nodes[index])
        if index == 0:
            nodes += (1.0 - state.offers) * num_unverified
        found.append(DraftWork(tokens, squared - (tokens - 1) ** 2, nodes))
    return found


@final
class StepDrafts:
    """Of a step, whose rows are added one by one."""

    def __init__(self) -> None:
        self.rows, self.tokens, self.nodes, self.drafted = 0, 0.0, 0.0, 0
        self.deepest = self._num_deepest = 0  # forwards of the drafter: rows are drafted for together

    def add_row(self, work: Sequence[DraftWork], depth: int) -> None:
        """A row with the draft that is ``depth`` deep."""
        whole = work[depth]
        self.rows, self.drafted = self.rows + 1, self.drafted + depth
        self.tokens, self.nodes = self.tokens + whole.tokens, self.nodes + whole.nodes
        if depth > self.deepest:
            self.deepest, self._num_deepest = depth, 0
        self._num_deepest += depth == self.deepest

    def cost(self, cost_of: CostOf) -> float:
        """Of the step."""
        return cost_of(self.rows, self.nodes, self.deepest, self.drafted)

    def speedup(self, cost_of: CostOf) -> float:
        """Its goodput over that of plain decoding."""
        return self.tokens / self.rows * cost_of(self.rows, self.rows, 0, 0) / self.cost(cost_of)

    def least(self, cost_of: CostOf) -> float:
        """The chance to be accepted from which the last token of the deepest row is worth what it costs: a node, and
        the drafter's forward if no other row drafts so deep.
        """
        deepest = self.deepest - (self._num_deepest == 1 < self.deepest)
        cost = self.cost(cost_of)
        return max(0.0, cost - cost_of(self.rows, self.nodes - 1, deepest, self.drafted - 1)) * self.tokens / cost
