"""The topology with the most accepted tokens, by dynamic programming over acceptance rates (Sequoia, 2402.12374).

The rate of rank r is how often the child of rank r is accepted if its parent is; a parent's rates sum to at most 1. A
node is accepted as often as the product of the rates along its path.
"""

from collections.abc import Sequence
from functools import cache
from math import prod

from paceline.drafters.tree.shapes import Topology


def expected_length(topology: Topology, acceptance_by_rank: Sequence[float]) -> float:
    """Expected tokens per step with ``topology``: the accepted ones and the correction or bonus."""
    return 1 + sum(prod(acceptance_by_rank[rank] for rank in node) for node in topology.nodes)


def best_topology(acceptance_by_rank: Sequence[float], num_drafted: int, depth: int) -> Topology:
    """The topology of at most ``num_drafted`` nodes and ``depth`` levels with the largest ``expected_length``.

    No node gets more children than there are rates. Raises ValueError for rates outside [0, 1] and counts below 0.
    """
    rates = tuple(acceptance_by_rank)
    for rate in rates:
        if not 0 <= rate <= 1:
            raise ValueError(f"acceptance_by_rank has {rate}: give rates from 0 to 1")
    for name, value in (("num_drafted", num_drafted), ("depth", depth)):
        if value < 0:
            raise ValueError(f"{name}={value}: give at least 0")

    @cache
    def best(num_nodes: int, levels: int, rank: int) -> tuple[float, int]:
        """The most accepted below one node by children from ``rank`` on, and the size of the subtree of that child."""
        found = (0.0, 0)
        if levels == 0 or rank == len(rates):
            return found
        for size in range(1, num_nodes + 1):
            under = 1 + best(size - 1, levels - 1, 0)[0]
            value = rates[rank] * under + best(num_nodes - size, levels, rank + 1)[0]
            if value > found[0]:
                found = (value, size)
        return found

    def build(path: tuple[int, ...], num_nodes: int, levels: int) -> list[tuple[int, ...]]:
        nodes: list[tuple[int, ...]] = []
        rank = 0
        while (size := best(num_nodes, levels, rank)[1]) > 0:
            nodes += [(*path, rank), *build((*path, rank), size - 1, levels - 1)]
            num_nodes, rank = num_nodes - size, rank + 1
        return nodes

    return Topology(tuple(build((), num_drafted, depth)))
