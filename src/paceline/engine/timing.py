"""Times the phases of a step, draft, score and decide, by the clock of the device that runs them."""

import time
from typing import Protocol, final

import torch

from paceline.core.step import PhaseSeconds


class StepTimer(Protocol):
    """Times one step, from the creation of the timer."""

    def mark(self) -> None:
        """Mark the end of draft, score or decide, in this order."""
        ...

    def seconds(self) -> PhaseSeconds:
        """Seconds of the phases; call it once the results have been read."""
        ...


@final
class HostTimer:
    """For the CPU: the host's clock. ``rest`` is the time from the last mark to ``seconds``, spent reading results."""

    def __init__(self) -> None:
        self._marks = [time.perf_counter()]

    def mark(self) -> None:
        """Mark the end of a phase."""
        self._marks.append(time.perf_counter())

    def seconds(self) -> PhaseSeconds:
        """Seconds of the phases until now."""
        begin, draft, score, decide = self._marks
        return PhaseSeconds(
            draft=draft - begin, score=score - draft, decide=decide - score, rest=time.perf_counter() - decide
        )


@final
class EventTimer:
    """For asynchronous devices: events in the device's queue."""

    def __init__(self) -> None:
        self._events = [_event()]

    def mark(self) -> None:
        """Mark the end of a phase in the queue."""
        self._events.append(_event())

    def seconds(self) -> PhaseSeconds:
        """Seconds between the events; waits for the last one."""
        self._events[-1].synchronize()
        pairs = zip(self._events[:-1], self._events[1:], strict=True)
        draft, score, decide = (begin.elapsed_time(end) / 1e3 for begin, end in pairs)
        return PhaseSeconds(draft=draft, score=score, decide=decide)


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
