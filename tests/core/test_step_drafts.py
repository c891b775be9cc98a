"""Drafts as they are reported: topology, accepted path, probabilities and what was rejected, of the rows that ask."""

import math

import pytest
import torch

from paceline.core.step_drafts import StepDrafts
from paceline.core.tree import Outcome, Tree

VOCABULARY = 12


def read(tree, path, asked=(0,), num_accepted=None, logits=None, scores=None):
    path = torch.tensor([path], dtype=torch.int64)
    outcome = Outcome(path=path, num_committed=(path >= 0).sum(-1) + 1, next=torch.tensor([1]))
    logits = torch.zeros(1, tree.num_nodes, VOCABULARY) if logits is None else logits
    drafts = StepDrafts.of(tree, outcome, asked, logits, logits if scores is None else scores)
    return drafts.read([int((path >= 0).sum()) if num_accepted is None else num_accepted])


def rejected(*args, **options):
    return {row: draft.rejected for row, draft in read(*args, **options).items()}


def test_of_a_chain_what_follows_the_accepted_tokens():
    valid = torch.tensor([[True, True, True, True, False]])
    chain = Tree.make_chain(torch.tensor([[9, 5, 6, 7, 0]]), valid)
    assert rejected(chain, [-1, -1, -1, -1]) == {0: [5, 6, 7]}
    assert rejected(chain, [1, -1, -1, -1]) == {0: [6, 7]}
    assert rejected(chain, [1, 2, 3, -1]) == {0: []}
    assert rejected(chain, [1, -1, -1, -1], asked=()) == {}


def branching():
    parents = torch.tensor([[-1, 0, 0, 2, 2, 3, 4]])
    valid = torch.tensor([[True, True, True, True, True, True, False]])
    return Tree.make(torch.tensor([[9, 1, 2, 3, 4, 5, 6]]), parents, valid, max_depth=3)


def test_of_a_tree_the_first_branch_after_the_accepted_path():
    assert rejected(branching(), [-1, -1, -1]) == {0: [1]}
    assert rejected(branching(), [2, -1, -1]) == {0: [3, 5]}
    assert rejected(branching(), [2, 4, -1]) == {0: []}


def test_of_the_root_alone_nothing():
    root = Tree.make_chain(torch.tensor([[9]]), torch.tensor([[True]]))
    assert rejected(root, []) == {0: []}
    logits = torch.randn(1, 1, VOCABULARY)
    draft = read(root, [], logits=logits)[0]
    assert draft.tokens == (9,) and draft.own_raw == pytest.approx(float(logits[0, 0].softmax(-1)[1]))


def test_nodes_that_are_not_valid_are_left_out_and_the_others_numbered_anew():
    parents, valid = torch.tensor([[-1, 0, 0, 1, 2]]), torch.tensor([[True, False, True, False, True]])
    draft = read(Tree.make(torch.tensor([[9, 1, 2, 3, 4]]), parents, valid, max_depth=2), [2, 4])[0]
    assert (draft.tokens, draft.parents, draft.path) == ((9, 2, 4), (-1, 0, 1), (1, 2))


def test_a_path_is_cut_to_what_was_accepted():
    assert read(branching(), [2, 3, 5], num_accepted=2)[0].path == (2, 3)


def test_probabilities_are_those_before_every_node():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(1, 7, VOCABULARY, generator=generator)
    scores = 2 * logits
    tree = branching()
    draft = read(tree, [2, 4, -1], logits=logits, scores=scores)[0]
    for node in range(1, 6):
        parent, token = int(tree.parents[0, node]), int(tree.tokens[0, node])
        assert draft.raw[node] == pytest.approx(float(logits[0, parent].softmax(-1)[token]))
        assert draft.processed[node] == pytest.approx(float(scores[0, parent].softmax(-1)[token]))
    assert math.isnan(draft.raw[0]) and all(map(math.isnan, draft.drafted))  # no distribution was recorded
    assert draft.own_raw == pytest.approx(float(logits[0, 4].softmax(-1)[1]))
    assert draft.own_processed == pytest.approx(float(scores[0, 4].softmax(-1)[1]))


def test_recorded_distributions_give_the_drafters_own_probabilities():
    probs = torch.rand(1, 2, VOCABULARY).softmax(-1)
    chain = Tree.make_chain(torch.tensor([[9, 5, 6]]), torch.ones(1, 3, dtype=torch.bool), probs=probs)
    draft = read(chain, [1, -1])[0]
    assert draft.drafted[1:] == pytest.approx((float(probs[0, 0, 5]), float(probs[0, 1, 6])))


def test_of_several_rows_those_that_ask():
    chain = Tree.make_chain(torch.tensor([[9, 5], [8, 6], [7, 4]]), torch.ones(3, 2, dtype=torch.bool))
    path = torch.tensor([[1], [-1], [1]])
    outcome = Outcome(path=path, num_committed=(path >= 0).sum(-1) + 1, next=torch.tensor([1, 2, 3]))
    logits = torch.randn(3, 2, VOCABULARY)
    found = StepDrafts.of(chain, outcome, (0, 2), logits, logits).read([1, 0, 1])
    assert {row: draft.tokens for row, draft in found.items()} == {0: (9, 5), 2: (7, 4)}
    assert found[2].raw[1] == pytest.approx(float(logits[2, 0].softmax(-1)[4]))
    assert found[2].own_raw == pytest.approx(float(logits[2, 1].softmax(-1)[3]))
