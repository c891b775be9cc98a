"""What the thread of an ``AsyncEngine`` knows of a call of ``submit``, and whom it tells of what happens."""

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar, final

from paceline.api.requests import Prepared
from paceline.api.results import Piece, Result
from paceline.api.streams import Stream

T = TypeVar("T")


class Observer(ABC):
    """Is told what happens, in the engine's thread: whatever it does takes time of a step."""

    @abstractmethod
    def stepped(self, rows: int) -> None:
        """A step was taken, after which ``rows`` are running."""

    @abstractmethod
    def gained(self, num: int, seconds: float | None) -> None:
        """An output gained ``num`` tokens, ``seconds`` after its last ones; None: they are its first."""

    @abstractmethod
    def ended(self, results: Sequence[Result], waited: float) -> None:
        """A submission has ended that waited so many seconds before it was given to the scheduler."""

    @abstractmethod
    def failed(self, num: int) -> None:
        """A step failed in which ``num`` outputs took part."""


@final
class Silent(Observer):
    """Counts nothing."""

    def stepped(self, rows: int) -> None: ...

    def gained(self, num: int, seconds: float | None) -> None: ...

    def ended(self, results: Sequence[Result], waited: float) -> None: ...

    def failed(self, num: int) -> None: ...


@final
class Submission:
    """One call of ``submit``, in the engine's thread."""

    def __init__(self, number: int, prepared: Sequence[Prepared], deadline: float) -> None:
        self.number, self.prepared, self.deadline = number, prepared, deadline
        self.submitted = time.monotonic()
        self.waited = 0.0  # seconds, until it was given to the scheduler
        self.stream: Stream | None = None  # from then on
        self.num_left = len(prepared)  # outputs that have not ended
        self._last: dict[tuple[int, int], float] = {}  # when each output gained tokens

    @property
    def num_tokens(self) -> int:
        """That it may take at most, prompts included."""
        return sum(len(request.tokens) + request.max_tokens for request, _ in self.prepared)

    @property
    def prompt_lengths(self) -> tuple[int, ...]:
        """Tokens of each prompt."""
        return tuple(len(request.tokens) for request, completion in self.prepared if completion.sample == 0)

    def note(self, pieces: Sequence[Piece], now: float, observer: Observer) -> None:
        """Tell ``observer`` of the pieces of a step that ended at ``now``."""
        for output, num in Counter((piece.index, piece.sample) for piece in pieces).items():
            last = self._last.get(output)
            self._last[output] = now
            observer.gained(num, None if last is None else now - last)


def fulfil(promise: Future[T], look: Callable[[], T]) -> None:
    """Give ``promise`` what ``look`` finds, or raises."""
    try:
        promise.set_result(look())
    except Exception as error:
        promise.set_exception(error)
