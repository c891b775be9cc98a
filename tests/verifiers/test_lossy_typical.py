"""Typical acceptance: what it keeps, that it does not keep the distribution, and that it says so."""

import math

import pytest
import torch

from paceline.core.scores import Scores
from paceline.core.tree import Tree
from paceline.verifiers.lossy_typical import LossyTypical
from tests.verifiers.enumerated import Rows


class Picks(Rows):
    """The likeliest token ends the step."""

    def __init__(self, rows):
        super().__init__(None, rows)

    def pick(self, logits, position):
        return logits.argmax(-1)


DISTRIBUTION = torch.tensor([0.02, 0.08, 0.3, 0.6], dtype=torch.float64)
ENTROPY = float(-(DISTRIBUTION * DISTRIBUTION.log()).sum())


def step(parents, tokens, probs=None, valid=None, **options):
    """The path, as a list, and the last token; ``probs`` by node, DISTRIBUTION if left out."""
    nodes = len(parents)
    valid = torch.tensor([valid or [True] * nodes])
    depth = [0]
    for parent in parents[1:]:
        depth.append(depth[parent] + 1)
    tree = Tree.make(torch.tensor([tokens]), torch.tensor([parents]), valid, max_depth=max(depth))
    logits = torch.stack([(probs or {}).get(node, DISTRIBUTION) for node in range(nodes)])[None].log()
    outcome = LossyTypical(**options)(tree, Scores.of(logits), Picks(1))
    return outcome.path[0].tolist(), int(outcome.next)


def test_a_token_is_kept_above_the_smaller_of_both_bounds():
    spread = 0.3 * math.exp(-ENTROPY)  # 0.123 at this entropy, so epsilon decides
    assert spread > 0.09
    for token in range(4):
        path, _ = step([-1, 0], [0, token])
        assert path == ([1] if DISTRIBUTION[token] > 0.09 else [-1])
        path, _ = step([-1, 0], [0, token], epsilon=1.0, delta=0.9)
        assert path == ([1] if DISTRIBUTION[token] > 3 * spread else [-1])


def test_the_longest_path_is_followed_and_the_likeliest_of_equals():
    assert step([-1, 0, 0, 1], [0, 2, 3, 2])[0] == [1, 3]
    assert step([-1, 0, 0, 1, 2], [0, 2, 3, 2, 2])[0] == [2, 4]
    assert step([-1, 0, 0], [0, 2, 3])[0] == [2]
    assert step([-1, 0, 0], [0, 2, 3], valid=[True, True, False])[0] == [1]


def test_the_last_token_is_the_targets_after_the_path():
    peaked = torch.tensor([0.97, 0.01, 0.01, 0.01], dtype=torch.float64)
    assert step([-1, 0, 1], [0, 2, 1], {1: peaked}) == ([1, -1], 0)


def test_a_distribution_without_spread_keeps_its_argmax_alone():
    one = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    assert step([-1, 0], [0, 1], {0: one})[0] == [1]
    assert step([-1, 0], [0, 3], {0: one})[0] == [-1]


@pytest.mark.parametrize("options", [dict(epsilon=0), dict(epsilon=1.5), dict(delta=0), dict(delta=-1)])
def test_bounds_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match="give numbers above 0 and at most 1"):
        LossyTypical(**options)
