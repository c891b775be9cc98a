"""Garbage collections of everything that is loaded do not meet what is timed."""

import gc

import pytest

from paceline.bench.timing import heap_set_aside, time_in_turn


def test_what_is_loaded_is_left_out_of_collections_while_calls_are_timed():
    found = []
    time_in_turn({"one": lambda: found.append(gc.get_freeze_count())}, repeats=2, seconds=0)
    assert min(found) > 10_000 and gc.get_freeze_count() == 0


def test_it_comes_back_after_a_failure():
    with pytest.raises(RuntimeError), heap_set_aside():
        raise RuntimeError
    assert gc.get_freeze_count() == 0
