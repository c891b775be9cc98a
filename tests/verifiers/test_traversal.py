"""Traversal verification: what it accepts, and the order of its tests."""

import pytest

from paceline.verifiers.recursive import Recursive
from paceline.verifiers.traversal import Traversal
from tests.verifiers.enumerated import (
    IID,
    SHAPES,
    Shape,
    drafts,
    enumerate_step,
    tables,
)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shape", ["two by two", "two by two without replacement", "two chains", "three chains"])
def test_it_keeps_at_least_what_recursive_rejection_keeps(shape):
    for seed in (2, 3):
        ours, theirs = (enumerate_step(r, SHAPES[shape], tables(seed)).accepted for r in (Traversal(), Recursive()))
        assert ours > theirs


def test_nodes_are_tested_after_their_descendants_and_their_earlier_siblings():
    tree, _ = drafts(Shape((0, 0, 1, 2, 1, 2, 4), (IID,) * 7), tables(1))
    turn = Traversal._test_order(tree)[0].tolist()
    assert sorted(range(8), key=turn.__getitem__) == [3, 5, 1, 7, 4, 6, 2, 0]
