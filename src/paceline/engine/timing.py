"""Times the phases of a step, draft, score and decide, by the clock of the device that runs them."""

import time
from typing import Protocol, final

import torch

from paceline.core.step import PhaseSeconds


class StepTimer(Protocol):
    """Times one step, from the creation of the timer."""

    def leave_out(self, seconds: float) -> None:
        """Do not count so many seconds of the host's, which have just passed; before any mark."""
        ...

    def mark_search(self) -> None:
        """Mark the end of the drafter's search, where there is one; before the other marks."""
        ...

    def mark(self) -> None:
        """Mark the end of draft, score or decide, in this order."""
        ...

    def seconds(self) -> PhaseSeconds:
        """Seconds of the phases; call it once the results have been read."""
        ...

    def elapsed(self) -> float | None:
        """Seconds until the last mark, of whatever was done; None while the device is at it."""
        ...


@final
class HostTimer:
    """For the CPU: the host's clock. ``rest`` is the time from the last mark to ``seconds``, spent reading results."""

    def __init__(self) -> None:
        self._marks = [time.perf_counter()]
        self._search = 0.0

    def leave_out(self, seconds: float) -> None:
        """Begin so much later."""
        self._marks[0] += seconds

    def mark_search(self) -> None:
        """Mark the end of the search."""
        self._search = time.perf_counter() - self._marks[0]

    def mark(self) -> None:
        """Mark the end of a phase."""
        self._marks.append(time.perf_counter())

    def seconds(self) -> PhaseSeconds:
        """Seconds of the phases until now."""
        begin, draft, score, decide = self._marks
        return PhaseSeconds(
            draft=draft - begin,
            score=score - draft,
            decide=decide - score,
            rest=time.perf_counter() - decide,
            search=self._search,
        )

    def elapsed(self) -> float | None:
        """Seconds until the last mark."""
        return self._marks[-1] - self._marks[0]


@final
class EventTimer:
    """For asynchronous devices: events in the device's queue."""

    def __init__(self) -> None:
        self._events = [_event()]
        self._search: torch.cuda.Event | None = None

    def leave_out(self, seconds: float) -> None:
        """The device's clock does not count them, for it still runs the step before."""

    def mark_search(self) -> None:
        """Mark the end of the search in the queue."""
        self._search = _event()

    def mark(self) -> None:
        """Mark the end of a phase in the queue."""
        self._events.append(_event())

    def seconds(self) -> PhaseSeconds:
        """Seconds between the events; waits for the last one."""
        self._events[-1].synchronize()
        pairs = zip(self._events[:-1], self._events[1:], strict=True)
        draft, score, decide = (begin.elapsed_time(end) / 1e3 for begin, end in pairs)
        search = 0.0 if self._search is None else self._events[0].elapsed_time(self._search) / 1e3
        return PhaseSeconds(draft=draft, score=score, decide=decide, search=search)

    def elapsed(self) -> float | None:
        """Seconds until the last mark; None before the device has come to it."""
        begin, end = self._events[0], self._events[-1]
        return begin.elapsed_time(end) / 1e3 if end.query() else None


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
