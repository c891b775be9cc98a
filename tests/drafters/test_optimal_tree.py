"""The best topology for measured rates, against every topology there is."""

import itertools
import time

import pytest

from paceline.drafters.tree.optimal import best_topology, expected_length
from paceline.drafters.tree.shapes import Topology


def every_topology(num_drafted, depth, ranks):
    """All trees of at most so many nodes, levels and children."""
    nodes = [node for d in range(1, depth + 1) for node in itertools.product(range(ranks), repeat=d)]
    for size in range(num_drafted + 1):
        for chosen in itertools.combinations(nodes, size):
            known = set(chosen)
            parents = all(len(n) == 1 or n[:-1] in known for n in chosen)
            siblings = all(n[-1] == 0 or (*n[:-1], n[-1] - 1) in known for n in chosen)
            if parents and siblings:
                yield Topology(chosen)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("rates", [(0.6, 0.2, 0.1), (0.4, 0.35), (0.9,), (0.2, 0.5, 0.1), (0.5, 0.0, 0.3)])
@pytest.mark.parametrize(("num_drafted", "depth"), [(0, 2), (1, 1), (3, 2), (4, 2), (5, 3), (4, 0)])
def test_no_topology_of_that_size_accepts_more(rates, num_drafted, depth):
    found = best_topology(rates, num_drafted, depth)
    assert found.num_drafted <= num_drafted and found.depth <= depth
    most = max(expected_length(other, rates) for other in every_topology(num_drafted, depth, len(rates)))
    assert expected_length(found, rates) == pytest.approx(most, abs=1e-12)


def test_known_answers():
    assert best_topology((1.0, 0.0), 4, 4) == Topology.chain(4)
    assert best_topology((0.3, 0.3, 0.3), 3, 5) == Topology.branching((3,))
    assert expected_length(Topology.branching((2, 1)), (0.5, 0.25)) == pytest.approx(1 + 0.75 + 0.5 * 0.75)


def test_a_tree_of_the_usual_size_is_found_at_once():
    begin = time.perf_counter()
    found = best_topology((0.6, 0.15, 0.07, 0.04, 0.03, 0.02, 0.015, 0.01), 63, 8)
    assert found.num_drafted == 63 and time.perf_counter() - begin < 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((1.2,), 3, 2), r"acceptance_by_rank has 1.2: give rates from 0 to 1"),
        (((0.5,), -1, 2), "num_drafted=-1: give at least 0"),
        (((0.5,), 1, -2), "depth=-2: give at least 0"),
    ],
)
def test_what_is_no_rate_and_no_size_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        best_topology(*arguments)
