"""Whether drafting keeps its promises is found out, and drafts that do not are not chosen."""

import pytest

from paceline.engine.calibration import HIGHEST, Calibration
from paceline.engine.controller import Controller
from paceline.engine.knowledge import Knowledge
from tests.engine.machine import Machine
from tests.harness import request


def drafted(calibration, *, steps, rows=8, tokens=1.5, cost=1.5, speedup=1.2, expected_cost=1.5):
    for _ in range(steps):
        calibration.add(rows=rows, tokens=tokens, cost=cost, speedup=speedup, expected_cost=expected_cost)
    return calibration.factor


def test_drafts_that_are_slower_than_expected_lower_the_factor_within_a_few_steps_of_a_batch():
    calibration = Calibration()
    assert calibration.factor == 1.0
    assert drafted(calibration, steps=1) > 0.95
    assert drafted(calibration, steps=15) < 0.9  # a speed-up of 1 where 1.2 was expected
    assert drafted(calibration, steps=1000) == pytest.approx(1 / 1.2, rel=0.05)
    single = Calibration()
    assert drafted(single, steps=15, rows=1) > 0.95  # a single row says less


def test_what_was_expected_leaves_the_factor_and_more_raises_it_a_little():
    calibration = Calibration()
    assert drafted(calibration, steps=500, tokens=1.8) == pytest.approx(1.0)
    assert drafted(calibration, steps=500, tokens=3.0) == HIGHEST


def test_one_disturbed_step_counts_as_little_more_than_another():
    usual, disturbed = Calibration(), Calibration()
    drafted(usual, steps=8, tokens=1.8)
    drafted(disturbed, steps=7, tokens=1.8)
    assert drafted(disturbed, steps=1, tokens=1.8, cost=30.0) > 0.95 * usual.factor


def test_it_is_forgotten_over_plain_steps():
    calibration = Calibration()
    low = drafted(calibration, steps=100)
    calibration.fade(8 * 100)
    soon = calibration.factor
    calibration.fade(8 * 20_000)
    assert low < soon < 0.9 and calibration.factor > 0.97


def test_depths_are_chosen_by_what_comes_true():
    """Per number of rows, and for greedy requests and those that sample apart."""
    known = Knowledge()
    cheap = dict(growth=0.05, draft=0.05)
    Machine(Controller(rows=4, knowledge=known), rows=4, **cheap).serve(lambda *_: 0.7, num_tokens=256, requests=4)

    def depth(**options):
        plan = Controller(rows=4, knowledge=known)
        plan.admit(range(4), [request([1], max_tokens=64, **options)] * 4)
        return plan().num_draft_tokens

    assert depth() >= 2
    drafted(known.calibrations[(4).bit_length(), False], steps=1000, rows=4, tokens=1.0, speedup=1.5)
    assert depth() == 0 < depth(temperature=0.7)
