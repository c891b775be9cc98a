"""Ctrl-C while an answer is being written."""

import signal
import threading
from types import FrameType
from typing import final


@final
class Interruption:
    """Within its block the first Ctrl-C sets ``asked``, so that an answer ends after a whole step.

    Before the answer has ``begun``, and from the second one on, it raises KeyboardInterrupt at once.
    """

    def __init__(self) -> None:
        self.count, self.begun = 0, False

    @property
    def asked(self) -> bool:
        """Whether the answer is to end."""
        return self.count > 0

    def __enter__(self) -> "Interruption":
        self._main = threading.current_thread() is threading.main_thread()  # handlers can be set there alone
        if self._main:
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, _: int, __: FrameType | None) -> None:
        self.count += 1
        if self.count > 1 or not self.begun:
            raise KeyboardInterrupt
