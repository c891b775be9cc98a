"""Where a step's time goes. The step says when a phase ends; who listens, and with which clock, is not its business."""

from enum import IntEnum
from typing import Protocol


class Phase(IntEnum):
    """The parts of a step, in their order."""

    DRAFT = 0  # proposing
    TARGET = 1  # the target's forward
    VERIFY = 2  # the rule
    REST = 3  # appending, committing, observing, counting


class Clock(Protocol):
    """Told at the end of every phase."""

    def mark(self, phase: Phase) -> None: ...


class NoClock:
    """Listens to nothing."""

    def mark(self, phase: Phase) -> None:
        """Nobody asked."""
