"""A submission as a stream of pieces, and its results at the end."""

import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol, final

from paceline.api.completion import Completion
from paceline.api.results import Piece, Result


class Serving(Protocol):
    """The part of the engine that a stream uses."""

    def advance(self) -> None: ...

    def cancel(self, ticket: int) -> None: ...

    def result(self, ticket: int, completion: Completion) -> Result: ...

    def forget(self, ticket: int) -> None: ...


@final
class Stream:
    """Iterates over the pieces of one submission as they are committed; ``close`` cancels it and frees its rows.

    Iterating advances the engine, and with it all other streams of that engine. A stream closes itself at the end of
    its ``with`` block and when it is garbage-collected.
    """

    def __init__(
        self, *, engine: Serving, tickets: list[int], completions: list[Completion], pieces: deque[Piece]
    ) -> None:
        self._engine, self._tickets, self._completions, self._pieces = engine, tickets, completions, pieces
        self._ended = 0  # leading completions that have ended

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        while not self._pieces:
            if self.done:
                raise StopIteration
            self._engine.advance()
        return self._pieces.popleft()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if ending():  # what the engine would call may be gone already; a default is there still
            return
        self.close()
        for ticket in self._tickets:
            self._engine.forget(ticket)

    @property
    def done(self) -> bool:
        """Whether every completion has ended."""
        while self._ended < len(self._completions) and self._completions[self._ended].finish_reason is not None:
            self._ended += 1
        return self._ended == len(self._completions)

    def take(self) -> list[Piece]:
        """The pieces that are there, without advancing the engine."""
        pieces = list(self._pieces)
        self._pieces.clear()
        return pieces

    def close(self) -> None:
        """Cancel the completions that have not ended; their results stay available."""
        for ticket in self._tickets:
            self._engine.cancel(ticket)

    def drain(self) -> list[Result]:
        """The results at the end. Ctrl-C closes the stream and raises Interrupted with the results so far."""
        try:
            for _ in self:
                pass
        except KeyboardInterrupt as interruption:
            self.close()
            raise Interrupted(self.results()) from interruption
        return self.results()

    def results(self) -> list[Result]:
        """The results so far, in order; completions that still run count as cancelled."""
        return [
            self._engine.result(ticket, completion)
            for ticket, completion in zip(self._tickets, self._completions, strict=True)
        ]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during generation; ``results`` holds the results so far."""

    def __init__(self, results: list[Result]) -> None:
        super().__init__(f"interrupted with {sum(len(result.token_ids) for result in results)} tokens generated")
        self.results = results
