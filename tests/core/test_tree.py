"""Trees and the walk that verifiers share."""

from dataclasses import replace

import torch

from paceline.core.tree import Tree, follow


def fan():
    """0 -> 1, 2; 1 -> 3, 4; 4 -> 5."""
    parents = torch.tensor([[-1, 0, 0, 1, 1, 4]])
    return Tree.make(torch.arange(6)[None], parents, torch.ones(1, 6, dtype=torch.bool), max_depth=3)


def test_depth_and_ancestors_follow_from_parents():
    tree = fan()
    assert tree.depth.tolist() == [[0, 1, 1, 2, 2, 3]]
    ancestors = [[n for n in range(6) if tree.ancestors[0, m, n]] for m in range(6)]
    assert ancestors == [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 4], [0, 1, 4, 5]]


def test_a_chain_built_either_way_is_the_same_tree():
    tokens, valid = torch.arange(5)[None], torch.tensor([[True, True, True, False, False]])
    chain = Tree.make_chain(tokens, valid)
    other = Tree.make(tokens, torch.arange(5)[None] - 1, valid, max_depth=4)
    for name in ("tokens", "parents", "depth", "ancestors", "valid", "source"):
        assert torch.equal(getattr(chain, name), getattr(other, name)), name
    assert chain.chain and not other.chain


def test_nodes_that_are_not_verified_see_the_root_and_each_other():
    tree = Tree.make_chain(torch.tensor([[9, 8, 7]]), torch.tensor([[True, True, False]]))
    assert tree.scored is tree
    beside = replace(fan(), valid=torch.tensor([[True, True, True, True, False, False]]))
    joined = replace(tree, unverified=beside).scored
    assert joined.num_nodes == 8 and joined.max_depth == 3 and not joined.chain and joined.unverified is None
    assert joined.tokens.tolist() == [[9, 8, 7, 1, 2, 3, 4, 5]]
    assert joined.depth.tolist() == [[0, 1, 2, 1, 1, 2, 2, 3]]
    assert joined.valid.tolist() == [[True, True, False, True, True, True, False, False]]
    again = Tree.make(joined.tokens, joined.parents, joined.valid, max_depth=3)
    for name in ("parents", "depth", "ancestors", "draw", "source", "origin"):
        assert torch.equal(getattr(joined, name), getattr(again, name)), name
    assert joined.parents.tolist() == [[-1, 0, 1, 0, 0, 3, 3, 6]]


def test_follow_needs_every_node_of_the_path():
    tree = fan()
    accepted = torch.tensor([[False, True, False, False, True, True]])
    leaf, path, length = follow(tree, accepted)
    assert (leaf.tolist(), path.tolist(), length.tolist()) == ([5], [[1, 4, 5]], [3])
    broken = accepted.clone()
    broken[0, 1] = False
    leaf, path, length = follow(tree, broken)
    assert (leaf.tolist(), path.tolist(), length.tolist()) == ([0], [[-1, -1, -1]], [0])


def test_follow_ignores_invalid_nodes():
    tree = fan()
    valid = tree.valid.clone()
    valid[0, 5] = False
    tree = Tree.make(tree.tokens, tree.parents, valid, max_depth=3)
    leaf, path, _ = follow(tree, torch.ones(1, 6, dtype=torch.bool))
    assert leaf.tolist() == [3] and path.tolist() == [[1, 3, -1]]
