"""Former names that still work."""

import paceline
from paceline.api import results
from tests.api.engines import engine, greedy


def test_former_names_of_results_are_the_present_ones():
    [result] = engine("model").generate([[5, 9, 2]], greedy(max_tokens=7))
    assert result.tokens == result.token_ids and len(result.tokens) == 7
    times = result.stats.times
    assert times.target == times.score > 0 and times.verify == times.decide > 0


def test_former_names_of_classes_are_the_present_ones():
    assert paceline.Statistics is results.Statistics is paceline.RequestStats
