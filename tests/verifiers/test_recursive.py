"""Recursive rejection: what it accepts of siblings, equal ones and those that run out of tokens."""

import torch

from paceline.core.noise import Philox
from paceline.core.scores import Scores
from paceline.verifiers.recursive import Recursive
from tests.verifiers.enumerated import (
    FIXED,
    SHAPES,
    WITHOUT,
    Rows,
    Shape,
    Tables,
    chain,
    drafts,
    enumerate_step,
    tables,
)


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
    """A distribution over two tokens has no third sibling: the node is treated as absent."""
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
