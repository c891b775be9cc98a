"""Deprecated names still work."""

import paceline
from paceline.api import results
from tests.api.engines import engine, greedy


def test_deprecated_names_of_results_still_work():
    [result] = engine("model").generate([[5, 9, 2]], greedy(max_tokens=7))
    assert result.tokens == result.token_ids and len(result.tokens) == 7
    times = result.stats.times
    assert times.target == times.score > 0 and times.verify == times.decide > 0


def test_deprecated_names_of_classes_still_work():
    assert paceline.Statistics is results.Statistics is paceline.RequestStats
