"""SpecTr: what it accepts of independent candidates, and the drafts that it skips or refuses."""

import pytest
import torch

from paceline.core.noise import Philox
from paceline.core.scores import Scores
from paceline.verifiers.spectr import SpecTr
from tests.verifiers.enumerated import (
    IID,
    SHAPES,
    Rows,
    Shape,
    Tables,
    chain,
    distance,
    drafts,
    enumerate_step,
    replace_tree,
    tables,
)


def test_fixed_choices_are_passed_over():
    found = enumerate_step(SpecTr(), SHAPES["a drawn, a fixed and a drawn sibling"], tables(1))
    assert distance(found) < 1e-12
    assert not bool(((found.outcome.path == 2).any(-1) & (found.weight > 0)).any())


def best(p, q, number):
    """Acceptance of ``number`` candidates at the least valid rho, by a fine search."""
    for rho in torch.linspace(1, number, 30_001, dtype=torch.float64):
        beta = torch.minimum(q, p / rho).sum()
        some = 1 - (1 - beta) ** number
        if some <= rho * beta + 1e-15:
            return float(some)
    raise AssertionError("the largest rho is always valid")


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_of_independent_candidates_it_keeps_what_rho_allows(number):
    given = tables(1)
    found = enumerate_step(SpecTr(), Shape((0,) * number, (IID,) * number), given)
    p, q = given.target.softmax(-1)[2, 1], given.drafts[0].softmax(-1)[2, 1]
    assert abs(found.accepted - best(p, q, number)) < 1e-4
    overlap = float(torch.minimum(p, q).sum())
    assert found.accepted >= (1 - 0.37) * overlap
    assert number > 1 or abs(found.accepted - overlap) < 1e-12


def test_paths_that_agree_stay_alive_together():
    """The draft is certain of its first token, so both paths have it, and the second tokens are two candidates."""
    given = tables(1)
    draft = given.drafts[0].clone()
    draft[2, 1] = torch.tensor([0.0, -torch.inf, -torch.inf])
    given = Tables(given.target, (draft,))
    p, q = given.target.softmax(-1), draft.softmax(-1)
    first, second = (best(p[sequence], q[sequence], 2) for sequence in ((2, 1), (1, 0)))
    assert abs(enumerate_step(SpecTr(), SHAPES["two chains"], given).accepted - first * (1 + second)) < 1e-4
    assert second > best(p[1, 0], q[1, 0], 1) + 0.01


def test_more_paths_keep_more():
    kept = [enumerate_step(SpecTr(), s, tables(1)).accepted for s in (chain(2), SHAPES["two chains"])]
    kept.append(enumerate_step(SpecTr(), SHAPES["three chains"], tables(1)).accepted)
    assert kept[0] + 0.01 < kept[1] and kept[1] + 0.01 < kept[2]


def test_the_path_lies_on_one_branch_even_where_two_outputs_are_equal():
    found = enumerate_step(SpecTr(), SHAPES["two chains"], tables(1))
    path = found.outcome.path
    both = path[:, 1] >= 0
    assert bool(both.any())
    assert bool((found.tree.parents.gather(1, path[:, 1:].clamp(min=0))[both, 0] == path[both, 0]).all())


def test_drafts_without_distributions_are_refused():
    tree, _ = drafts(Shape((0, 0), (IID,) * 2), tables(1))
    tree = replace_tree(tree, probs=None)
    logits = torch.zeros(len(tree.tokens), 3, 3)
    with pytest.raises(ValueError, match="'spectr' needs drafts drawn from a distribution"):
        SpecTr()(tree, Scores.of(logits), Rows(Philox(), len(tree.tokens)))
