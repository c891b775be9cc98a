"""Traversal verification: its exact distribution on every kind of tree, what it keeps, and what it is on chains."""

import pytest
import torch

from paceline.core.noise import Philox
from paceline.core.scores import Scores
from paceline.verifiers.block import Block
from paceline.verifiers.recursive import Recursive
from paceline.verifiers.traversal import Traversal
from tests.verifiers.enumerated import (
    IID,
    SHAPES,
    Rows,
    Shape,
    Tables,
    distance,
    drafts,
    enumerate_step,
    partial,
    replace_tree,
    tables,
)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("one_distribution", [True, False])
def test_the_distribution_is_the_targets(shape, one_distribution):
    for seed in (1, 2):
        assert (
            distance(enumerate_step(Traversal(), SHAPES[shape], tables(seed), one_distribution=one_distribution))
            < 1e-12
        )


@pytest.mark.parametrize("shape", ["two by two", "two by two without replacement", "two chains", "chain of 3"])
def test_invalid_nodes_are_as_if_absent(shape):
    for valid in partial(SHAPES[shape]):
        assert distance(enumerate_step(Traversal(), SHAPES[shape], tables(1), valid=valid)) < 1e-12


def test_an_only_valid_sibling_is_kept_as_often_as_an_only_child():
    second = enumerate_step(Traversal(), SHAPES["two without replacement"], tables(1), valid=[False, True])
    assert abs(second.accepted - enumerate_step(Traversal(), SHAPES["chain of 1"], tables(1)).accepted) < 1e-12


@pytest.mark.parametrize("shape", ["two by two", "two by two without replacement", "two chains", "three chains"])
def test_it_keeps_at_least_what_recursive_rejection_keeps(shape):
    for seed in (2, 3):
        ours, theirs = (enumerate_step(r, SHAPES[shape], tables(seed)).accepted for r in (Traversal(), Recursive()))
        assert ours > theirs


@pytest.mark.parametrize("shape", ["chain of 1", "chain of 3", "chain of fixed choices", "chain of both"])
@pytest.mark.parametrize("length", [0, 1, 3])
def test_on_chains_it_is_block_verification_token_for_token(shape, length):
    given, shape = tables(3), SHAPES[shape]
    tree, _ = drafts(shape, given, repeat=20)
    valid = torch.arange(shape.num_nodes) <= length
    tree = replace_tree(tree, valid=valid.expand(tree.tokens.shape))
    before = torch.where(tree.parents < 0, 2, tree.tokens.gather(1, tree.parents.clamp(min=0)))
    logits = given.target[before, tree.tokens]
    batch = Rows(Philox(), len(tree.tokens))
    batch.length = batch.length + torch.arange(batch.rows)  # noise of its own for every row
    ours, theirs = Traversal()(tree, Scores.of(logits), batch), Block()(tree, Scores.of(logits), batch)
    for a, b in ((ours.path, theirs.path), (ours.num_committed, theirs.num_committed), (ours.next, theirs.next)):
        assert torch.equal(a, b)
    assert length == 0 or 1 < float(ours.num_committed.double().mean()) < length + 1


def test_nodes_are_tested_after_their_descendants_and_their_earlier_siblings():
    tree, _ = drafts(Shape((0, 0, 1, 2, 1, 2, 4), (IID,) * 7), tables(1))
    turn = Traversal._test_order(tree)[0].tolist()
    assert sorted(range(8), key=turn.__getitem__) == [3, 5, 1, 7, 4, 6, 2, 0]


def test_single_precision_is_enough():
    for shape in ("two by two", "two by two without replacement"):
        assert distance(enumerate_step(Traversal(), SHAPES[shape], tables(2), dtype=torch.float32)) < 1e-6


def test_zeros_in_either_distribution():
    probs = torch.tensor([[0.5, 0.5, 0], [0, 0.3, 0.7], [1, 0, 0], [0.6, 0.1, 0.3]], dtype=torch.float64)
    for p in probs:
        for q in probs:
            given = Tables(p.log().expand(3, 3, 3), (q.log().expand(3, 3, 3),))
            assert distance(enumerate_step(Traversal(), Shape((0, 0, 1), (IID,) * 3), given)) < 1e-12
