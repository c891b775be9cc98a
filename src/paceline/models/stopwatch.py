"""How long a device takes for a stretch of work."""

import time
from typing import final

import torch


@final
class Stopwatch:
    """Runs from when it is made to ``stop``; on a GPU by events, so that only who asks for ``seconds`` waits."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._start = device, _mark(device)
        self._end: float | torch.cuda.Event | None = None

    def stop(self) -> None:
        """The work has been handed to the device."""
        self._end = _mark(self._device)

    @property
    def seconds(self) -> float:
        """Between start and stop; 0 while it runs."""
        if isinstance(self._start, torch.cuda.Event) and isinstance(self._end, torch.cuda.Event):
            self._end.synchronize()
            return self._start.elapsed_time(self._end) / 1e3
        if isinstance(self._start, float) and isinstance(self._end, float):
            return self._end - self._start
        return 0.0


def _mark(device: torch.device) -> float | torch.cuda.Event:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event
