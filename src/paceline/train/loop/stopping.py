"""Handles SIGTERM and Ctrl-C: the run ends after the current step, with a checkpoint."""

import signal
import threading
from types import FrameType
from typing import Any, final


class Stopped(KeyboardInterrupt):
    """A run that was stopped by a signal and has saved; the message says how to resume."""


@final
class StopSignals:
    """Records SIGTERM and Ctrl-C while entered. The second signal ends the process, unless ``ignore_repeats``.

    Under torchrun one Ctrl-C arrives twice, from the terminal and from torchrun, which kills slow processes itself.
    """

    def __init__(self, *, ignore_repeats: bool = False) -> None:
        self.requested, self.ignore_repeats = False, ignore_repeats
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():  # other threads cannot set handlers
            self._previous = {number: signal.signal(number, self._handle) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        if not self.ignore_repeats:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
