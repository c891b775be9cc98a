"""The depths of the highest goodput (2406.14066): expected new tokens of all rows over the expected cost of a step."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

from paceline.engine.acceptance import offers, survival
from paceline.engine.costs import StepWork
from paceline.engine.knowledge import Knowledge
from paceline.engine.probes import RowState

KEEP_PLAIN = 0.99  # weight of a request's former drafted steps, with each of its plain ones
LONGEST_MEMORY = 1000  # plain steps after which nothing more is forgotten
OWN_WEIGHT = 3.0  # of the pool against a request's own steps
SWITCH = 1.1  # drafting begins where it is so many times better than plain decoding
MOST_LEAST = 0.4  # a token that is as likely as this to be accepted is drafted whatever it costs
NEARLY = 0.85  # of the best goodput: what a depth must promise to be tried for its cost


class Choice(NamedTuple):
    """Depths of the rows that draft at all, their goodput over that of plain decoding, and the chance to be accepted
    below which a token is not worth its cost.
    """

    depths: Mapping[int, int]
    speedup: float
    least: float


def keep_over(missed: int) -> float:
    """The weight that former drafted steps keep over so many tokens that the drafter missed."""
    return KEEP_PLAIN ** min(missed, LONGEST_MEMORY) if missed else 1.0


@final
class Goodput:
    """Weighs depths by what ``knowledge`` says; a draft has ``num_nodes`` nodes by its depth, from 0.

    With ``ends_early`` drafts may also be as deep as they can and end by themselves.
    """

    def __init__(self, knowledge: Knowledge, num_nodes: Sequence[int], *, ends_early: bool = False) -> None:
        self.knowledge, self.num_nodes, self.ends_early = knowledge, num_nodes, ends_early
        self._known: dict[tuple[int, int, int], float] = {}

    def refresh(self) -> None:
        """Look costs and the pool up again."""
        self._known.clear()
        self.knowledge.pool.refresh()

    def cost(self, nodes: float, depth: float = 0, drafted: float = 0.0) -> float:
        """The cost of a step in units of the level, looked up once between two refreshes."""
        key = (int(4 * nodes + 0.5), int(4 * depth + 0.5), int(drafted + 0.5))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self.knowledge.costs(StepWork(key[0] / 4, key[1] / 4, key[2]))
        return known

    def expect(self, state: RowState) -> None:
        """Compute what is expected of a row's draft."""
        weight = OWN_WEIGHT / keep_over(state.missed)
        state.survival = survival(state.counts, self.knowledge.pool, weight=weight)
        state.offers = offers(state.counts, self.knowledge.pool, weight=weight)

    def best(self, rows: Mapping[int, RowState]) -> Choice:
        """The depths of the highest goodput.

        Tokens are added in the order of their chance to be accepted, so the best number of them is found on the way.
        """
        for state in rows.values():
            self.expect(state)
        chains = self._best_depths(rows)
        if not self.ends_early:
            return chains
        whole = self._best_rows(rows)
        return whole if whole.speedup >= chains.speedup else chains

    def _best_depths(self, rows: Mapping[int, RowState]) -> Choice:
        """As ``best``, for drafts of fixed depths."""
        num_nodes = self.num_nodes
        options: list[tuple[float, int, int]] = []  # minus the chance, depth - 1, row
        for row, state in rows.items():
            share = -state.offers
            options += [(share * alive, index, row) for index, alive in enumerate(state.survival[: state.most])]
        options.sort()
        best, best_goodput = 0, SWITCH
        tokens, nodes, deepest = float(len(rows)), float(len(rows)), 0
        value = self.cost(nodes) / tokens
        for number, (chance, index, row) in enumerate(options, start=1):
            tokens -= chance
            nodes += rows[row].offers * (num_nodes[index + 1] - num_nodes[index])
            if index >= deepest:
                deepest = index + 1
            goodput = value * tokens / self.cost(nodes, deepest, number)
            if goodput > best_goodput:
                best, best_goodput = number, goodput
        depths: dict[int, int] = {}
        for _, index, row in options[:best]:
            if index >= depths.get(row, 0):
                depths[row] = index + 1
        return Choice(depths, best_goodput, 0.0)

    def _best_rows(self, rows: Mapping[int, RowState]) -> Choice:
        """As ``best``, for drafts that end where they are not sure: rows are added by what they gain."""
        reached = self.knowledge.pool.reached
        options: list[tuple[float, int, float, int]] = []  # minus the tokens expected to be accepted, row, nodes, depth
        for row, state in rows.items():
            most, share = state.most, state.offers
            if most:
                options.append((-share * sum(state.survival[:most]), row, share * sum(reached[:most]), most))
        options.sort()
        best, best_goodput, least = 0, SWITCH, 0.0
        tokens, nodes, drafted = float(len(rows)), float(len(rows)), 0.0
        value = self.cost(nodes) / tokens
        for number, (accepted, _, added, most) in enumerate(options, start=1):
            read = [1.0, *reached[: most - 1]]  # a forward of the drafter finds that the next token is not worth it
            tokens, nodes, drafted = tokens - accepted, nodes + added, drafted + sum(read)
            deepest = sum(1 - (1 - one) ** number for one in read)  # of the row that drafts longest
            cost = self.cost(nodes, deepest, drafted)
            if value * tokens / cost > best_goodput:
                best, best_goodput = number, value * tokens / cost
                node = self.cost(nodes + 1, deepest, drafted) - cost
                drafting = (self.cost(nodes, deepest + 1, drafted + number) - cost) / number
                least = max(0.0, node + drafting) * tokens / cost
        return Choice({row: most for _, row, _, most in options[:best]}, best_goodput, min(least, MOST_LEAST))

    def other(
        self, depths: Mapping[int, int], rows: Mapping[int, RowState], shift: int, speedup: float
    ) -> dict[int, int]:
        """All ``depths`` of at least 1 shifted, if that may be nearly as good as ``speedup``; else none.

        What keeps them from being tried is doubted, so that one bad measurement does not rule them out for good.
        """
        other = {row: min(max(depth + shift, 1), rows[row].most) if depth else 0 for row, depth in depths.items()}
        nodes = tokens = float(len(other))
        for row, depth in other.items():
            state = rows[row]
            if depth:
                nodes += state.offers * self.num_nodes[depth]
                tokens += state.offers * sum(state.survival[:depth])
        expected = tokens / self.cost(nodes, max(other.values()), sum(other.values()))
        expected *= self.cost(len(other)) / len(other)
        if other == depths:
            return {}
        if expected > NEARLY * speedup:
            return other
        self.knowledge.costs.doubt(StepWork(nodes, max(other.values())))
        return {}

    def probe_cost(self, num_rows: int, probing: Sequence[RowState]) -> float:
        """What a step of ``num_rows`` costs more than a plain one if some of them are ``probing``."""
        nodes = num_rows + sum(self.num_nodes[state.burst] for state in probing)
        depths = [state.burst for state in probing]
        reading = self.knowledge.costs.catch_up * sum(state.missed for state in probing)
        return self.cost(nodes, max(depths), sum(depths)) - self.cost(num_rows) + reading
