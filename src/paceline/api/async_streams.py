"""What ``AsyncEngine`` gives to a task: the stream of a submission, and the errors that it may end with."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import final

from paceline.api.results import Piece, Result


class OverloadedError(RuntimeError):
    """As many requests wait as may; nothing was queued."""


class DrainingError(RuntimeError):
    """The engine takes no requests any more; nothing was queued."""


class DeadlineError(TimeoutError):
    """The time of a request is over; ``results`` holds what there was by then."""

    def __init__(self, message: str, results: list[Result]) -> None:
        super().__init__(message)
        self.results = results


class EngineError(RuntimeError):
    """The step failed that a request took part in, or the engine's thread has ended."""


@final
class AsyncStream:
    """Iterates over the pieces of one submission, those of a step together, as tuples.

    Leaving its ``async with`` block, ``cancel`` and garbage collection free its rows within a step. To a reader who is
    slower than the engine, pieces of several steps come together. Iterating raises DeadlineError when the time of the
    request is over, and EngineError where the engine failed. ``prompt_lengths`` are the tokens of each prompt.
    """

    def __init__(self, cancel: Callable[[], None], *, prompt_lengths: tuple[int, ...] = ()) -> None:
        self._cancel, self.prompt_lengths = cancel, prompt_lengths
        self._pieces: list[Piece] = []
        self._results: list[Result] | None = None
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    def __aiter__(self) -> AsyncIterator[tuple[Piece, ...]]:
        return self

    async def __anext__(self) -> tuple[Piece, ...]:
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._results is not None:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        pieces, self._pieces = tuple(self._pieces), []
        return pieces

    async def __aenter__(self) -> "AsyncStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        self.cancel()

    def cancel(self) -> None:
        """End it; what waits is not begun, and what runs stops after the step. Its results stay available."""
        if self._results is None and self._error is None:
            self._cancel()

    async def results(self) -> list[Result]:
        """The results at the end, of all samples of all its prompts in order. Raises as iterating does."""
        while self._results is None and self._error is None:
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error
        assert self._results is not None
        return self._results

    def deliver(self, pieces: Sequence[Piece], results: list[Result] | None, error: Exception | None) -> None:
        """Take what the engine has for it; called in the event loop."""
        self._pieces.extend(pieces)
        if self._results is None and self._error is None:
            self._results, self._error = results, error
        self._changed.set()
