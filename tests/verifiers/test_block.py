"""Block verification: what it accepts, and where that is what rejection accepts."""

import pytest
import torch

from paceline.core.tree import Draw
from paceline.verifiers.block import Block
from paceline.verifiers.rejection import Rejection
from tests.verifiers.enumerated import Tables, chain, enumerate_step, same, tables


def test_the_papers_example_keeps_eleven_ninths():
    p, q = torch.tensor([1 / 3, 2 / 3, 0], dtype=torch.float64), torch.tensor([2 / 3, 1 / 3, 0], dtype=torch.float64)
    assert abs(enumerate_step(Block(), chain(2), same(p, q)).accepted - 11 / 9) < 1e-12
    assert abs(enumerate_step(Rejection(), chain(2), same(p, q)).accepted - 10 / 9) < 1e-12


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


def test_equal_distributions_keep_everything():
    given = tables(1)
    found = enumerate_step(Block(), chain(3), Tables(given.target, (given.target,)))
    assert abs(found.accepted - 3) < 1e-12
