"""Seconds per phase of a step, by the clock of the device that does the work. Decides nothing."""

import time
from typing import Protocol, final

import torch

from paceline.core.clock import Phase

Phases = tuple[float, float, float, float]  # seconds in the order of Phase


class StepTimes(Protocol):
    """When the phases of one step ended."""

    def take(self) -> Phases:
        """Seconds of the step, once its results have been read."""
        ...


class StepClock(Protocol):
    """A Clock (core/clock) that can be read, step by step."""

    def start(self) -> StepTimes:
        """A step begins: marks are of this one until the next begins."""
        ...

    def mark(self, phase: Phase) -> None: ...


@final
class HostClock:
    """For devices that work while they are called."""

    def start(self) -> StepTimes:
        """A step begins."""
        self._times = _HostTimes()
        return self._times

    def mark(self, phase: Phase) -> None:
        """A phase has ended."""
        self._times.mark(phase)


@final
class _HostTimes:
    def __init__(self) -> None:
        self._seconds = [0.0] * len(Phase)
        self._at = time.perf_counter()

    def mark(self, phase: Phase) -> None:
        now = time.perf_counter()
        self._seconds[phase] += now - self._at
        self._at = now

    def take(self) -> Phases:
        """What the marks said; the time since the last one, spent on reading, is rest."""
        self.mark(Phase.REST)
        draft, target, verify, rest = self._seconds
        return draft, target, verify, rest


@final
class EventClock:
    """For devices that run behind the host: events in their queue, read when all has arrived."""

    def start(self) -> StepTimes:
        """A step begins."""
        self._times = _EventTimes()
        return self._times

    def mark(self, phase: Phase) -> None:
        """A phase's work has been queued."""
        self._times.mark(phase)


@final
class _EventTimes:
    def __init__(self) -> None:
        self._phases: list[Phase] = []
        self._events = [_event()]

    def mark(self, phase: Phase) -> None:
        self._phases.append(phase)
        self._events.append(_event())

    def take(self) -> Phases:
        """Seconds between the events."""
        self._events[-1].synchronize()
        seconds = [0.0] * len(Phase)
        for phase, begin, end in zip(self._phases, self._events[:-1], self._events[1:], strict=True):
            seconds[phase] += begin.elapsed_time(end) / 1e3
        draft, target, verify, rest = seconds
        return draft, target, verify, rest


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def clock_for(device: torch.device) -> StepClock:
    """The clock that sees a device's own time."""
    return EventClock() if device.type == "cuda" else HostClock()
