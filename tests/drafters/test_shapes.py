"""Shapes as values: which nodes they have, and what is refused."""

import pytest

from paceline.core.tree import Draw
from paceline.drafters.model import ModelDrafter
from paceline.drafters.tree.shapes import Chain, Confident, Topology
from tests import tiny


def test_nodes_stand_by_depth_and_siblings_in_draw_order():
    shape = Topology(((1,), (0, 1), (0,), (0, 0), (1, 0), (0, 1, 0)))
    assert shape.nodes == ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 1, 0))
    assert shape.parents == (-1, 0, 0, 1, 1, 2, 4)
    assert (shape.depth, shape.num_drafted, shape.max_width) == (3, 6, 2)
    assert shape.cut(2).nodes == shape.nodes[:5] and shape.cut(9) == shape and shape.cut(0).num_drafted == 0


def test_named_shapes_have_their_nodes():
    assert Topology.chain(3).nodes == ((0,), (0, 0), (0, 0, 0))
    assert Topology.branching((2, 1)).nodes == ((0,), (1,), (0, 0), (1, 0))
    assert Topology.parallel(2, 3).parents == (-1, 0, 0, 1, 2, 3, 4)
    assert Topology.parallel(4, 0) == Topology.chain(0) == Topology(())
    assert Topology.branching((3, 2, 1)).num_drafted == 3 + 6 + 6


REFUSED = {
    "orphan": (lambda: Topology(((0,), (1, 0))), r"tree node \(1, 0\) without its parent \(1,\)"),
    "gap": (lambda: Topology(((0,), (2,))), r"tree node \(2,\) without its sibling \(1,\)"),
    "twice": (lambda: Topology(((0,), (0,))), "a tree of 2 nodes of which only 1 differ"),
    "root": (lambda: Topology(((),)), r"tree node \(\): give the ranks"),
    "negative": (lambda: Topology(((-1,),)), r"tree node \(-1,\): give the ranks"),
    "no children": (lambda: Topology.branching((2, 0)), r"widths \(2, 0\): give each depth at least 1 child"),
    "no paths": (lambda: Topology.parallel(0, 3), "0 paths: give at least 1"),
    "nothing proposed": (lambda: Confident(num_drafted=0, depth=2, width=2), "num_drafted=0: give at least 1"),
    "no width": (lambda: Confident(num_drafted=3, depth=2, width=0), "width=0: give at least 1"),
    "upwards": (lambda: Confident(num_drafted=3, depth=-1, width=1), "depth=-1: give at least 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_shape_that_no_tree_has_is_refused(case):
    make, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        make()


def test_a_confident_shape_is_cut_to_what_can_be_scored():
    shape = Confident(num_drafted=30, depth=4, width=3)
    assert [shape.cut(depth).num_drafted for depth in (0, 1, 2, 3, 4, 9)] == [0, 3, 12, 21, 30, 30]
    assert shape.cut(2).cut(9) == shape.cut(2) and shape.cut(2).depth == 2


def test_a_confident_tree_has_fixed_tokens_and_no_others():
    shape = Confident(num_drafted=6, depth=2, width=3)
    assert ModelDrafter(lm=tiny.draft(), shape=shape).draws == {Draw.FIXED}
    assert ModelDrafter(lm=tiny.draft(), shape=shape, draws=frozenset(Draw)).draws == {Draw.FIXED}
    with pytest.raises(ValueError, match="a Confident tree has tokens that are fixed, not shared, iid: change one"):
        ModelDrafter(lm=tiny.draft(), shape=shape, draws=frozenset({Draw.SHARED, Draw.IID}))


def test_a_drafter_reserves_the_nodes_of_its_shape_at_every_depth():
    drafter = ModelDrafter(lm=tiny.draft(), shape=Topology.branching((3, 2)))
    assert [drafter.max_nodes(depth) for depth in range(4)] == [1, 4, 10, 10] and drafter.branches
    chain = ModelDrafter(lm=tiny.draft())
    assert [chain.max_nodes(depth) for depth in range(4)] == [1, 2, 3, 4] and not chain.branches
    assert not ModelDrafter(lm=tiny.draft(), shape=Topology.chain(2)).branches


@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_a_chain_of_a_size_is_the_topology_of_a_chain(length):
    topology, chain = Topology.chain(length), Chain(length)
    for name in ("depth", "num_drafted", "num_expanded", "max_width", "draws", "parents", "ranks"):
        assert getattr(chain, name) == getattr(topology, name), name
    assert chain.cut(3) == Chain(min(3, length))
