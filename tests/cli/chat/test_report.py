"""What is said of an answer's speed is what was measured, and nothing where it was not."""

from dataclasses import replace

import pytest

from paceline.api import generate, load
from paceline.cli.chat.answering import Drafting
from paceline.cli.chat.report import Pace, Tally, describe, pace_of, summary
from paceline.engine.costs import DepthCost
from paceline.engine.watch import Speed
from tests.api.checkpoints import pair
from tests.cli.chat.talking import ASKED, GREEDY


@pytest.fixture(scope="module")
def result():
    (found,) = generate(load(pair().target), ASKED, GREEDY, drafter=str(pair().draft), num_draft_tokens=4)
    times = replace(found.stats.times, prefill=5.0, total=9.0, draft=0.25, score=0.5, decide=0.125, rest=0.125)
    return replace(found, stats=replace(found.stats, times=times, costs=(), speed=None))


def measured(result, **stats):
    return replace(result, stats=replace(result.stats, **stats))


def cost(depth, seconds, times):
    return DepthCost(depth=depth, seconds=seconds, break_even=1.0, expected=1.0, times_measured=times)


def test_plain_decoding_is_estimated_by_its_measured_steps(result):
    assert pace_of(result) == Pace(tokens=24, seconds=1.0)
    costs = (cost(0, 0.125, 3), cost(4, 7.0, 9))
    assert pace_of(measured(result, costs=costs)) == Pace(tokens=24, seconds=1.0, plain=3.0)
    assert pace_of(measured(result, costs=(cost(0, 0.125, 0), cost(4, 7.0, 9)))).plain is None
    assert pace_of(measured(result, speed=Speed(drafted=100.0, plain=48.0))).plain == 0.5


def test_time_saved_or_lost_is_said():
    said = "24 tokens in 1.00 s: 24 tokens/s"
    assert describe(Pace(tokens=24, seconds=1.0)) == said
    saved = Pace(tokens=24, seconds=1.0, plain=3.0)
    assert describe(saved) == f"{said}; plainly about 3.00 s: 2.00 s saved (3.00x)"
    lost = Pace(tokens=24, seconds=1.0, plain=0.5)
    assert describe(lost) == f"{said}; plainly about 0.50 s: 0.50 s lost (0.50x)"
    assert describe(Pace()) == "0 tokens"


def test_a_summary_says_why_the_answer_ended(result):
    drafting = Drafting("model", "model")
    said = summary(result, drafting, max_tokens=24)
    assert "of the drafts accepted; plain steps not measured yet; stopped by max_tokens 24" in said
    assert summary(result, drafting, max_tokens=100).endswith("the conversation is as long as it can be")


def test_a_sum_with_what_was_not_measured_has_no_estimate(result):
    tally = Tally()
    tally.add(measured(result, speed=Speed(drafted=100.0, plain=48.0)), 2.0)
    tally.add(measured(result, speed=Speed(drafted=100.0, plain=24.0)), 2.0)
    assert tally.pace == Pace(tokens=48, seconds=2.0, plain=1.5) and tally.seconds == 4.0
    tally.add(result, 1.0)
    assert tally.pace == Pace(tokens=72, seconds=3.0, plain=None)
