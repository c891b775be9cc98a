"""Seconds per phase of a step, by the clock of the device that does the work. Decides nothing."""

import time
from typing import Protocol, final

import torch

from paceline.core.clock import Phase

Phases = tuple[float, float, float, float]  # seconds in the order of Phase


class StepClock(Protocol):
    """A Clock (core/clock) that can be read after a step."""

    def start(self) -> None:
        """A step begins."""
        ...

    def mark(self, phase: Phase) -> None: ...

    def take(self) -> Phases:
        """Seconds of the step that began last, once its results have been read."""
        ...


@final
class HostClock:
    """For devices that work while they are called."""

    def start(self) -> None:
        """A step begins."""
        self._seconds = [0.0] * len(Phase)
        self._at = time.perf_counter()

    def mark(self, phase: Phase) -> None:
        """A phase has ended."""
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

    def start(self) -> None:
        """A step begins."""
        self._phases: list[Phase] = []
        self._events = [self._now()]

    def mark(self, phase: Phase) -> None:
        """A phase's work has been queued."""
        self._phases.append(phase)
        self._events.append(self._now())

    def take(self) -> Phases:
        """Seconds between the events."""
        self._events[-1].synchronize()
        seconds = [0.0] * len(Phase)
        for phase, begin, end in zip(self._phases, self._events[:-1], self._events[1:], strict=True):
            seconds[phase] += begin.elapsed_time(end) / 1e3
        draft, target, verify, rest = seconds
        return draft, target, verify, rest

    @staticmethod
    def _now() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def clock_for(device: torch.device) -> StepClock:
    """The clock that sees a device's own time."""
    return EventClock() if device.type == "cuda" else HostClock()
