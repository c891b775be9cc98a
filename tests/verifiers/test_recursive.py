"""Recursive rejection: its exact distribution on every kind of tree, and what it is on chains."""

import pytest
import torch

from paceline.core.noise import Philox
from paceline.core.scores import Scores
from paceline.verifiers.recursive import Recursive
from paceline.verifiers.rejection import Rejection
from tests.verifiers.enumerated import (
    FIXED,
    IID,
    SHAPES,
    WITHOUT,
    Rows,
    Shape,
    Tables,
    chain,
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
            distance(enumerate_step(Recursive(), SHAPES[shape], tables(seed), one_distribution=one_distribution))
            < 1e-12
        )


@pytest.mark.parametrize("shape", ["two by two", "two by two without replacement", "two chains", "chain of 3"])
def test_invalid_nodes_are_as_if_absent(shape):
    for valid in partial(SHAPES[shape]):
        assert distance(enumerate_step(Recursive(), SHAPES[shape], tables(1), valid=valid)) < 1e-12


def test_an_only_valid_sibling_is_kept_as_often_as_an_only_child():
    second = enumerate_step(Recursive(), SHAPES["two without replacement"], tables(1), valid=[False, True])
    assert abs(second.accepted - enumerate_step(Recursive(), SHAPES["chain of 1"], tables(1)).accepted) < 1e-12


def test_more_siblings_keep_more_and_more_yet_without_replacement():
    kept = [
        enumerate_step(Recursive(), shape, tables(2)).accepted
        for shape in (chain(1), SHAPES["two siblings"], SHAPES["two without replacement"])
    ]
    assert kept[0] + 0.01 < kept[1] and kept[1] + 0.01 < kept[2]


def test_all_tokens_drawn_without_replacement_leave_nothing_to_refuse():
    """With every token of the vocabulary among the children, the step always accepts one."""
    assert abs(enumerate_step(Recursive(), SHAPES["three without replacement"], tables(1)).accepted - 1) < 1e-12


def test_an_equal_fixed_sibling_is_never_accepted():
    found = enumerate_step(Recursive(), SHAPES["siblings of equal fixed choices"], tables(1))
    second = (found.outcome.path[:, 0] == 2) & (found.weight > 0)
    assert not bool(second.any())


def test_distributions_that_run_out_end_the_siblings():
    """A distribution with two tokens has no third sibling, whatever stands there; the node is as if absent."""
    given = tables(1)
    distribution = torch.tensor([0.4, 0.6, 0.0], dtype=torch.float64).log().expand(3, 3, 3)
    shape, two = Shape((0, 0, 0), (WITHOUT,) * 3), Shape((0, 0), (WITHOUT,) * 2)
    given = Tables(given.target, (distribution,))
    tree, _ = drafts(shape, given)
    logits = given.target[torch.tensor(2), torch.tensor(1)].expand(len(tree.tokens), 4, 3)
    assert abs(enumerate_step(Recursive(), two, given).accepted - enumerate_step_of_three(given)) < 1e-12
    outcome = Recursive()(tree, Scores.of(logits), Rows(Heads(), len(tree.tokens)))
    exhausted = (tree.tokens[:, 1:3].sort(-1).values == torch.tensor([0, 1])).all(-1)
    assert bool(exhausted.any()) and not bool((outcome.path[exhausted, 0] == 3).any())


class Heads(Philox):
    """Every coin that may land does."""

    def coin(self, numerator, denominator, key):
        return numerator > 0


def enumerate_step_of_three(given):
    """As two without replacement, with a third node that has nothing left to be drawn from."""
    shape = Shape((0, 0, 0), (WITHOUT, WITHOUT, FIXED), (0, 0, 2))
    found = enumerate_step(Recursive(), shape, given, valid=[True, True, False])
    return found.accepted


@pytest.mark.parametrize("shape", ["chain of 1", "chain of 3", "chain of fixed choices", "chain of both"])
@pytest.mark.parametrize("length", [0, 1, 3])
def test_on_chains_it_is_rejection_token_for_token(shape, length):
    given, shape = tables(3), SHAPES[shape]
    tree, _ = drafts(shape, given, repeat=20)
    valid = torch.arange(shape.num_nodes) <= length
    tree = replace_tree(tree, valid=valid.expand(tree.tokens.shape))
    before = torch.where(tree.parents < 0, 2, tree.tokens.gather(1, tree.parents.clamp(min=0)))
    logits = given.target[before, tree.tokens]
    batch = Rows(Philox(), len(tree.tokens))
    batch.length = batch.length + torch.arange(batch.rows)  # noise of its own for every row
    ours, theirs = Recursive()(tree, Scores.of(logits), batch), Rejection()(tree, Scores.of(logits), batch)
    for a, b in ((ours.path, theirs.path), (ours.num_committed, theirs.num_committed), (ours.next, theirs.next)):
        assert torch.equal(a, b)
    assert length == 0 or 1 < float(ours.num_committed.double().mean()) < length + 1


def test_single_precision_is_enough():
    for shape in ("two by two", "two by two without replacement"):
        assert distance(enumerate_step(Recursive(), SHAPES[shape], tables(2), dtype=torch.float32)) < 1e-6


def test_zeros_in_either_distribution():
    probs = torch.tensor([[0.5, 0.5, 0], [0, 0.3, 0.7], [1, 0, 0], [0.6, 0.1, 0.3]], dtype=torch.float64)
    for p in probs:
        for q in probs:
            given = Tables(p.log().expand(3, 3, 3), (q.log().expand(3, 3, 3),))
            assert distance(enumerate_step(Recursive(), Shape((0, 0, 1), (IID,) * 3), given)) < 1e-12
