"""Block verification: its exact distribution, what it keeps, and where it is the token verifier."""

import pytest
import torch

from paceline.core.tree import Draw
from paceline.verifiers.block import Block
from paceline.verifiers.rejection import Rejection
from tests.verifiers.enumerated import SHAPES, Tables, chain, distance, enumerate_step, tables

CHAINS = ["chain of 1", "chain of 3", "chain of fixed choices", "chain of both"]


@pytest.mark.parametrize("shape", CHAINS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_distribution_is_the_targets(shape, seed):
    assert distance(enumerate_step(Block(), SHAPES[shape], tables(seed))) < 1e-12


@pytest.mark.parametrize("length", [0, 1, 2])
def test_the_distribution_is_the_targets_after_ragged_drafts(length):
    valid = [i < length for i in range(3)]
    assert distance(enumerate_step(Block(), chain(3), tables(4), valid=valid)) < 1e-12
    assert distance(enumerate_step(Block(), SHAPES["chain of both"], tables(4), valid=[*valid, False])) < 1e-12


def toy(p, q):
    """Tables whose distributions are the same after every sequence."""
    return Tables(p.log().expand(3, 3, 3), (q.log().expand(3, 3, 3),))


def test_the_papers_example_keeps_eleven_ninths():
    p, q = torch.tensor([1 / 3, 2 / 3, 0], dtype=torch.float64), torch.tensor([2 / 3, 1 / 3, 0], dtype=torch.float64)
    assert abs(enumerate_step(Block(), chain(2), toy(p, q)).accepted - 11 / 9) < 1e-12
    assert abs(enumerate_step(Rejection(), chain(2), toy(p, q)).accepted - 10 / 9) < 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_it_keeps_at_least_what_the_token_verifier_keeps(seed):
    block, token = (enumerate_step(verifier, chain(3), tables(seed)).accepted for verifier in (Block(), Rejection()))
    assert block >= token - 1e-12
    if seed == 0:
        assert block > token + 1e-3


@pytest.mark.parametrize("seed", [1, 2])
def test_fixed_choices_are_kept_as_often_as_by_the_token_verifier(seed):
    shape = chain(3, Draw.FIXED, (2, 0, 1))
    block, token = (enumerate_step(verifier, shape, tables(seed)) for verifier in (Block(), Rejection()))
    assert abs(block.accepted - token.accepted) < 1e-12


def test_distributions_with_zeros():
    """Where p, q or both forbid a token, where p is q, and where q is certain."""
    rows = torch.tensor(
        [[0.5, 0.5, 0], [0, 0.3, 0.7], [0.2, 0.5, 0.3], [1, 0, 0], [0, 0, 1], [0.6, 0.1, 0.3]], dtype=torch.float64
    )
    for a in rows:
        for b in rows:
            given = toy(a, b)
            assert distance(enumerate_step(Block(), chain(2), given)) < 1e-12


def test_equal_distributions_keep_everything():
    given = tables(1)
    found = enumerate_step(Block(), chain(3), Tables(given.target, (given.target,)))
    assert abs(found.accepted - 3) < 1e-12


def test_single_precision_is_enough():
    assert distance(enumerate_step(Block(), chain(3), tables(2), dtype=torch.float32)) < 1e-6
