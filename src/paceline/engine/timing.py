"""Seconds of draft, score and decide in every step, by the clock of the device that does the work."""

import time
from typing import Protocol, final

import torch

from paceline.core.step import PhaseSeconds


class StepTimer(Protocol):
    """The times of one step, which begins when the timer is made."""

    def mark(self) -> None:
        """Draft, score or decide has ended, in this order."""
        ...

    def seconds(self) -> PhaseSeconds:
        """Of the step, once its results have been read."""
        ...


@final
class HostTimer:
    """For devices that work while they are called: the time since the last mark, spent on reading, is the rest."""

    def __init__(self) -> None:
        self._marks = [time.perf_counter()]

    def mark(self) -> None:
        """A phase has ended."""
        self._marks.append(time.perf_counter())

    def seconds(self) -> PhaseSeconds:
        """Of the step, until now."""
        begin, draft, score, decide = self._marks
        return PhaseSeconds(
            draft=draft - begin, score=score - draft, decide=decide - score, rest=time.perf_counter() - decide
        )


@final
class EventTimer:
    """For devices that run behind the host: events in their queue."""

    def __init__(self) -> None:
        self._events = [_event()]

    def mark(self) -> None:
        """A phase's work has been queued."""
        self._events.append(_event())

    def seconds(self) -> PhaseSeconds:
        """Between the events; waits for the last one."""
        self._events[-1].synchronize()
        pairs = zip(self._events[:-1], self._events[1:], strict=True)
        draft, score, decide = (begin.elapsed_time(end) / 1e3 for begin, end in pairs)
        return PhaseSeconds(draft=draft, score=score, decide=decide)


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
