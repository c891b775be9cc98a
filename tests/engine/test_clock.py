"""Seconds by phase."""

import pytest
import torch
from paceline.core.clock import NoClock, Phase
from paceline.engine.clock import HostClock, clock_for

from paceline.engine import clock
from tests.drafters.test_none import tiny as no_drafter
from tests.harness import decoder_for, request


@pytest.fixture
def times(monkeypatch):
    """What the host's clock says, call by call."""
    left = []
    monkeypatch.setattr(clock.time, "perf_counter", lambda: left.pop(0))
    return left


def test_each_phase_has_the_time_since_the_mark_before_it(times):
    times += [10.0, 11.0, 13.0, 13.5, 14.0, 20.0]
    host = HostClock()
    times_of = host.start()
    for phase in Phase:
        host.mark(phase)
    assert times_of.take() == (1.0, 2.0, 0.5, 0.5 + 6.0), "reading is part of the rest"


def test_a_phase_that_is_marked_twice_adds_up(times):
    times += [0.0, 1.0, 3.0, 6.0, 6.0]
    host = HostClock()
    times_of = host.start()
    for phase in (Phase.DRAFT, Phase.TARGET, Phase.DRAFT):
        host.mark(phase)
    assert times_of.take() == (1.0 + 3.0, 2.0, 0.0, 0.0)


def test_every_step_begins_at_nothing(times):
    times += [0.0, 5.0, 5.0, 100.0, 101.0, 101.0]
    host = HostClock()
    for _ in range(2):
        times_of = host.start()
        host.mark(Phase.TARGET)
        last = times_of.take()
    assert last == (0.0, 1.0, 0.0, 0.0)


def test_a_step_marks_every_phase_once_in_order():
    marks = []

    class Noting(NoClock):
        def mark(self, phase):
            marks.append(phase)

    decoder = decoder_for(no_drafter(None), "coupled")
    decoder.clock = Noting()
    decoder.admit([request([1], max_tokens=3)], [0])
    assert marks == [], "admission is no part of a step"
    decoder.step()
    assert marks == list(Phase)


def test_devices_that_run_while_they_are_called_have_the_hosts_clock():
    assert isinstance(clock_for(torch.device("cpu")), HostClock)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_devices_that_run_behind_the_host_have_their_own():
    timer = clock_for(torch.device("cuda"))
    times_of = timer.start()
    for phase in Phase:
        torch.ones(1 << 20, device="cuda").sum()
        timer.mark(phase)
    assert all(seconds > 0 for seconds in times_of.take())
