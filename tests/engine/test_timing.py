"""Seconds of draft, score and decide."""

import time
from unittest.mock import Mock

import pytest
import torch

from paceline.core.step import PhaseSeconds
from paceline.engine import timing
from paceline.engine.readers import SyncReader
from paceline.engine.runner import Runner
from paceline.engine.timing import EventTimer, HostTimer
from tests.drafters.test_none import tiny as no_drafter
from tests.harness import decoder_for, request


@pytest.fixture
def times(monkeypatch):
    """What the host's clock says, call by call."""
    left = []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: left.pop(0))
    return left


def test_each_phase_has_the_time_since_the_mark_before_it(times):
    times += [10.0, 11.0, 13.0, 13.5, 20.0]
    timer = HostTimer()
    for _ in range(3):
        timer.mark()
    assert timer.seconds() == PhaseSeconds(draft=1.0, score=2.0, decide=0.5, rest=6.5)


def test_a_search_is_a_part_of_drafting(times):
    times += [10.0, 10.75, 11.0, 13.0, 13.5, 20.0]
    timer = HostTimer()
    timer.mark_search()
    for _ in range(3):
        timer.mark()
    seconds = timer.seconds()
    assert seconds == PhaseSeconds(draft=1.0, score=2.0, decide=0.5, rest=6.5, search=0.75)
    assert seconds.without_search == PhaseSeconds(draft=0.25, score=2.0, decide=0.5, rest=6.5)
    assert seconds.total == 10.0


def test_what_is_left_out_is_in_no_phase(times):
    times += [10.0, 11.0, 13.0, 13.5, 20.0]
    timer = HostTimer()
    timer.leave_out(0.75)
    for _ in range(3):
        timer.mark()
    assert timer.seconds() == PhaseSeconds(draft=0.25, score=2.0, decide=0.5, rest=6.5)


def test_phases_add_up():
    one, other = PhaseSeconds(draft=1.0, score=2.0, search=0.5), PhaseSeconds(score=3.0, decide=4.0, rest=5.0)
    assert one + other == PhaseSeconds(draft=1.0, score=5.0, decide=4.0, rest=5.0, search=0.5)
    assert (one + other).total == 15.0


def test_a_step_is_marked_after_draft_score_and_decide():
    decoder = decoder_for(no_drafter(None), "coupled")
    decoder.admit([request([1], max_tokens=3)], [0])
    marks, reader = [], SyncReader(decoder)

    class Noting(HostTimer):
        def mark(self):
            marks.append(int(decoder.batch.length[0]))
            super().mark()

    reader.start = Noting
    pending = Runner(decoder, reader=reader).launch()
    assert marks == [1, 1, 2], "only deciding appends"
    assert pending.result().seconds.total > 0


def test_planning_is_no_part_of_drafting():
    """A plan may weigh many rows, and is to learn what drafts cost."""
    decoder = decoder_for(no_drafter(None), "coupled")
    decoder.admit([request([1], max_tokens=3)], [0])
    plan = decoder.plan
    decoder.plan = Mock(wraps=plan, side_effect=lambda: (time.sleep(0.2), plan())[1])
    assert Runner(decoder).launch().result().seconds.draft < 0.2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_devices_that_run_behind_the_host_are_timed_by_their_own_events():
    timer = EventTimer()
    for _ in range(3):
        torch.ones(1 << 20, device="cuda").sum()
        timer.mark()
    seconds = timer.seconds()
    assert min(seconds.draft, seconds.score, seconds.decide) > 0 and seconds.rest == 0
