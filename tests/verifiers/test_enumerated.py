"""What all verifiers of distributions share, by enumeration of one step; what is special is in a file of each."""

import pytest
import torch

from paceline.core.noise import Philox
from paceline.core.scores import Scores
from paceline.verifiers.block import Block
from paceline.verifiers.recursive import Recursive
from paceline.verifiers.rejection import Rejection
from paceline.verifiers.spectr import SpecTr
from paceline.verifiers.traversal import Traversal
from tests.verifiers.enumerated import (
    IID,
    SHAPES,
    Rows,
    Shape,
    chain,
    distance,
    drafts,
    enumerate_step,
    logits_of,
    partial,
    replace_tree,
    same,
    tables,
)

CHAINS = ["chain of 1", "chain of 3", "chain of fixed choices", "chain of both"]
FORKS = ["two siblings", "three siblings", "two by two", "two chains", "three chains"]
FORKS += ["two chains, one after the other", "deep first"]
VERIFIERS = {Block: CHAINS, SpecTr: [*CHAINS[:2], *FORKS], Recursive: list(SHAPES), Traversal: list(SHAPES)}
TREES = ["two by two", "two by two without replacement", "two chains", "chain of 3"]
RAGGED = {Block: ["chain of 3", "chain of both"], SpecTr: ["two chains"], Recursive: TREES, Traversal: TREES}
SINGLE = {Block: ["chain of 3"], SpecTr: ["two chains"], Recursive: TREES[:2], Traversal: TREES[:2]}
FORKED = {Block: chain(2), SpecTr: SHAPES["two chains"], Recursive: Shape((0, 0, 1), (IID,) * 3)}
FORKED[Traversal] = FORKED[Recursive]
ON_CHAINS = {Recursive: (Rejection, CHAINS), SpecTr: (Rejection, ["chain of 3"]), Traversal: (Block, CHAINS)}


def each(table):
    return pytest.mark.parametrize(
        ("kind", "shape"), [(kind, shape) for kind, shapes in table.items() for shape in shapes]
    )


@pytest.mark.one_in(6)
@each(VERIFIERS)
@pytest.mark.parametrize("one_distribution", [True, False])
def test_the_distribution_is_the_targets(kind, shape, one_distribution):
    for seed in (1, 2, 3):
        found = enumerate_step(kind(), SHAPES[shape], tables(seed), one_distribution=one_distribution)
        assert distance(found) < 1e-12


@pytest.mark.one_in(3)
@each(RAGGED)
def test_invalid_nodes_are_as_if_absent(kind, shape):
    for valid in partial(SHAPES[shape]):
        assert distance(enumerate_step(kind(), SHAPES[shape], tables(4), valid=valid)) < 1e-12


@each(SINGLE)
def test_single_precision_is_enough(kind, shape):
    assert distance(enumerate_step(kind(), SHAPES[shape], tables(2), dtype=torch.float32)) < 1e-6


@pytest.mark.parametrize("kind", FORKED)
def test_zeros_in_either_distribution(kind):
    """Where p, q or both forbid a token, where p is q, and where q has a single token."""
    rows = [[0.5, 0.5, 0], [0, 0.3, 0.7], [0.2, 0.5, 0.3], [1, 0, 0], [0, 0, 1], [0.6, 0.1, 0.3]]
    rows = torch.tensor(rows, dtype=torch.float64)
    for p in rows:
        for q in rows:
            assert distance(enumerate_step(kind(), FORKED[kind], same(p, q))) < 1e-12


@pytest.mark.parametrize("kind", [Recursive, Traversal])
def test_an_only_valid_sibling_is_kept_as_often_as_an_only_child(kind):
    second = enumerate_step(kind(), SHAPES["two without replacement"], tables(1), valid=[False, True])
    assert abs(second.accepted - enumerate_step(kind(), SHAPES["chain of 1"], tables(1)).accepted) < 1e-12


@each({kind: shapes for kind, (_, shapes) in ON_CHAINS.items()})
@pytest.mark.parametrize("length", [0, 1, 3])
def test_on_chains_it_is_the_verifier_of_chains_token_for_token(kind, shape, length):
    given, shape = tables(3), SHAPES[shape]
    tree, _ = drafts(shape, given, repeat=20)
    valid = torch.arange(shape.num_nodes) <= length
    tree = replace_tree(tree, valid=valid.expand(tree.tokens.shape))
    batch = Rows(Philox(), len(tree.tokens))
    batch.length = batch.length + torch.arange(batch.rows)  # noise of its own for every row
    scores = Scores.of(logits_of(tree, given))
    ours, theirs = (verifier(tree, scores, batch) for verifier in (kind(), ON_CHAINS[kind][0]()))
    for name in ("path", "num_committed", "next"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name))
    assert length == 0 or 1 < float(ours.num_committed.double().mean()) < length + 1
