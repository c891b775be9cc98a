"""Signals that ask a run to end: it ends after its step, with all saved. Knows nothing of what runs."""

import signal
import threading
from types import FrameType
from typing import Any, final


class Stopped(KeyboardInterrupt):
    """A run that was asked to end and has saved; the message says how to go on."""


@final
class Stopping:
    """Notes SIGTERM and Ctrl-C while it is entered; the second one ends the process as usual, unless it is ``patient``.

    Under torchrun a single Ctrl-C comes twice, from the terminal and from torchrun, which itself ends who takes long.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self.asked, self.patient = False, patient
        self._former: dict[int, Any] = {}

    def __enter__(self) -> "Stopping":
        if threading.current_thread() is threading.main_thread():  # nobody else may set handlers
            self._former = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if not self.patient:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._former = {}
