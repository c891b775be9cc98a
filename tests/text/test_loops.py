"""Repetitive outputs are detected."""

from paceline.text.loops import distinct_share, is_looping


def test_distinct_share_counts_four_grams():
    assert distinct_share(range(10)) == 1
    assert distinct_share([1, 2, 3, 4, 1, 2, 3, 4]) == 4 / 5
    assert distinct_share([1, 2, 3]) == distinct_share([]) == 1
    assert is_looping([5] * 20) and not is_looping([*range(12), *range(12)])
