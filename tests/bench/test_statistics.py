import numpy as np
import pytest

from paceline.bench.statistics import (
    Relation,
    break_even,
    efficiency,
    estimate,
    first_difference,
    ideal_speedup,
    is_void,
    paired_ratios,
)


def test_ratios_are_paired():
    assert paired_ratios([4, 8], [2, 1]) == [2, 8]


@pytest.mark.parametrize(("base", "own"), [([1], [1, 2]), ([], [])])
def test_unpaired_repeats_are_refused(base, own):
    with pytest.raises(ValueError, match=f"{len(base)} and {len(own)} repeats"):
        paired_ratios(base, own)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    generator = np.random.default_rng(7)
    covered = 0
    for trial in range(300):
        found = estimate(list(1.5 * np.exp(generator.normal(0, 0.1, 15))), level=0.9, resamples=400, seed=trial)
        assert found.low <= found.value <= found.high
        covered += found.low <= 1.5 <= found.high
    assert 0.82 <= covered / 300 <= 0.98


def test_intervals_shrink_with_the_level_and_are_reproducible():
    values = list(np.random.default_rng(1).normal(2, 0.2, 20))
    wide, narrow = estimate(values, level=0.99), estimate(values, level=0.5)
    assert wide.high - wide.low > narrow.high - narrow.low > 0
    assert estimate(values) == estimate(values)


def test_one_value_is_its_own_interval():
    found = estimate([3.0])
    assert (found.value, found.low, found.high) == (3, 3, 3)


def test_nothing_has_no_estimate():
    with pytest.raises(ValueError, match="no values"):
        estimate([])


@pytest.mark.parametrize(
    ("ratios", "void"),
    [([1.0], False), ([0.97], False), ([1.03], False), ([0.969], True), ([1.031], True), ([0.5, 1.0, 2.0], False)],
)
def test_a_control_beyond_three_percent_is_void(ratios, void):
    assert is_void(ratios) == void


@pytest.mark.parametrize(
    ("tokens", "reference", "at"),
    [((1, 2), (1, 2), None), ((1, 3), (1, 2), 1), ((9,), (1,), 0), ((1,), (1, 2), 1), ((1, 2), (1,), 1)],
)
def test_first_differences(tokens, reference, at):
    assert first_difference(tokens, reference) == at


def test_ideal_speedup_is_the_classic_formula():
    # 3 tokens a step, 4 draft tokens that cost a tenth of a target forward each
    ideal = ideal_speedup(tokens_per_step=3, draft_seconds=4 * 0.01, target_seconds=0.1)
    assert ideal == pytest.approx(3 / 1.4)
    assert ideal_speedup(tokens_per_step=1, draft_seconds=0, target_seconds=1) == 1
    half = efficiency(ideal / 2, tokens_per_step=3, draft_seconds=0.04, target_seconds=0.1)
    assert half == pytest.approx(0.5)


@pytest.mark.parametrize(("draft", "target"), [(-1, 1), (1, 0)])
def test_impossible_times_are_refused(draft, target):
    with pytest.raises(ValueError, match="give measured times"):
        ideal_speedup(tokens_per_step=2, draft_seconds=draft, target_seconds=target)


def test_break_even_lies_on_the_line_between_two_sizes():
    found = break_even([(8, 0.8), (1, 2.0), (2, 1.4)])
    assert found.relation is Relation.AT
    assert found.batch == pytest.approx(2 * 4 ** (0.4 / 0.6))
    assert break_even([(1, 1.5), (4, 1.0)]).batch == pytest.approx(4)


def test_break_even_beyond_the_sweep_is_said_so():
    assert str(break_even([(1, 2.0), (4, 1.1)])) == "> 4"
    assert str(break_even([(2, 0.9), (4, 1.1)])) == "< 2"


@pytest.mark.parametrize("points", [[], [(1, 2.0), (1, 0.5)]])
def test_break_even_needs_different_sizes(points):
    with pytest.raises(ValueError, match="different batch sizes"):
        break_even(points)
