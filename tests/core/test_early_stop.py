"""Levels of distributions, and the notes that report them."""

import pytest
import torch

from paceline.core.early_stop import LEVELS, MOST_NOTED, EarlyStop, StopRule, level_of, level_of_odds, noted_levels

CPU = torch.device("cpu")
ALL = torch.ones(3, dtype=torch.bool)


def peaked(odds):
    """Logits of two tokens, the second of which is ``odds`` times as likely as the first."""
    return torch.tensor([0.0, float(odds)]).log().clamp(min=-200) if odds == 0 else torch.tensor([1.0, odds]).log()


@pytest.mark.parametrize(
    ("odds", "level"), [(1.0, 8), (1.40, 8), (1.42, 9), (1.99, 9), (2.01, 10), (11.0, 14), (11.4, 15), (1e9, 15)]
)
def test_a_level_is_the_odds_of_the_likeliest_token(odds, level):
    assert level_of(peaked(odds)) == level
    assert level_of(peaked(odds).bfloat16() * 0 + peaked(odds)) == level
    assert level_of(peaked(odds).flip(0)) == level


@pytest.mark.parametrize(("odds", "level"), [(1e-9, 1), (0.99, 7), (1.01, 8), (1.42, 9), (2.01, 10), (1e9, 15)])
def test_a_judgement_has_the_level_of_its_odds(odds, level):
    assert level_of_odds(torch.tensor(odds).log()) == level
    stop = EarlyStop(1, CPU)
    stop.plan(StopRule((0.5,) * LEVELS, (0.0,)))
    stop.follow(None, peaked(1.0)[None], 0, ALL[:1], torch.tensor([odds]).log())
    assert noted_levels(int(stop.notes), 1) == [level]


def test_flat_distributions_have_the_lowest_levels_and_what_is_excluded_does_not_count():
    assert level_of(torch.zeros(4000)) == 1
    excluded = torch.full((4000,), -torch.inf)
    excluded[:2] = 0
    assert level_of(excluded) == 8
    assert level_of(torch.zeros(3, 2, 4)).tolist() == [[4, 4]] * 3  # odds of a third: 8 - 2 log2(3)


def test_a_chain_ends_where_the_chance_falls_below_the_least():
    stop = EarlyStop(3, CPU)
    stop.plan(StopRule(tuple(level / LEVELS for level in range(1, LEVELS + 1)), (0.0, 0.5, 0.9)))
    logits = peaked(1.0).expand(3, 2)  # 8 of 15
    chance, goes_on = stop.follow(None, logits, 0, ALL)
    assert goes_on.tolist() == [True, True, False]
    _, goes_on = stop.follow(chance, logits, 1, torch.tensor([True, True, False]))
    assert goes_on.tolist() == [True, False, False]
    assert [noted_levels(note, 2) for note in stop.notes.tolist()] == [[8, 8], [8, 8], [8]]


def test_notes_hold_what_fits():
    stop = EarlyStop(1, CPU)
    stop.plan(StopRule((1.0,) * LEVELS, (0.0,)))
    for depth in range(MOST_NOTED + 2):
        stop.follow(None, peaked(1e9 if depth == 14 else 1.0)[None], depth, ALL[:1])
    assert noted_levels(int(stop.notes), 40) == [8] * 14 + [15]
    assert noted_levels(int(stop.notes), 2) == [8, 8]
    assert noted_levels(0, 3) == []
