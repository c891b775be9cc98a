"""Rejected draft tokens: which ones of a chain and of a tree, and for which rows."""

import torch

from paceline.core.rejected import StepDrafts
from paceline.core.tree import Outcome, Tree


def read(tree, path, asked=(0,)):
    path = torch.tensor([path])
    outcome = Outcome(path=path, num_committed=(path >= 0).sum(-1) + 1, next=torch.tensor([1]))
    return StepDrafts.of(tree, outcome, asked).read()


def test_of_a_chain_what_follows_the_accepted_tokens():
    valid = torch.tensor([[True, True, True, True, False]])
    chain = Tree.make_chain(torch.tensor([[9, 5, 6, 7, 0]]), valid)
    assert read(chain, [-1, -1, -1, -1]) == {0: [5, 6, 7]}
    assert read(chain, [1, -1, -1, -1]) == {0: [6, 7]}
    assert read(chain, [1, 2, 3, -1]) == {0: []}
    assert read(chain, [1, -1, -1, -1], asked=()) == {}


def test_of_a_tree_the_first_branch_after_the_accepted_path():
    parents = torch.tensor([[-1, 0, 0, 2, 2, 3, 4]])
    valid = torch.tensor([[True, True, True, True, True, True, False]])
    tree = Tree.make(torch.tensor([[9, 1, 2, 3, 4, 5, 6]]), parents, valid, max_depth=3)
    assert read(tree, [-1, -1, -1]) == {0: [1]}
    assert read(tree, [2, -1, -1]) == {0: [3, 5]}
    assert read(tree, [2, 4, -1]) == {0: []}


def test_of_the_root_alone_nothing():
    root = Tree.make_chain(torch.tensor([[9]]), torch.tensor([[True]]))
    assert read(root, []) == {0: []}
