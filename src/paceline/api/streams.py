"""Pieces of one submission as they come, and what is left of it when it ends. Knows no rows and no models."""

from collections import deque
from collections.abc import Iterator
from typing import Protocol, final

from paceline.api.completion import Completion
from paceline.api.results import Piece, Result


class Serving(Protocol):
    """What a stream's tickets are served by."""

    def advance(self) -> None: ...

    def cancel(self, ticket: int) -> None: ...

    def result(self, ticket: int, completion: Completion) -> Result: ...

    def forget(self, ticket: int) -> None: ...


@final
class Stream:
    """Pieces of one submission as they are committed, step by step; ``close`` ends it and frees its rows.

    Iterating advances the engine, so streams of one engine move together, whichever is asked. As a context manager it
    closes itself, and also when nobody holds it any more.
    """

    def __init__(
        self, *, engine: Serving, tickets: list[int], completions: list[Completion], pieces: deque[Piece]
    ) -> None:
        self._engine, self._tickets, self._completions, self._pieces = engine, tickets, completions, pieces
        self._ended = 0  # so many of the first completions have ended

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

    def __del__(self) -> None:
        self.close()
        for ticket in self._tickets:
            self._engine.forget(ticket)

    @property
    def done(self) -> bool:
        """Whether every completion has ended."""
        while self._ended < len(self._completions) and self._completions[self._ended].finish_reason is not None:
            self._ended += 1
        return self._ended == len(self._completions)

    def close(self) -> None:
        """Cancel what has not ended; results stay."""
        for ticket in self._tickets:
            self._engine.cancel(ticket)

    def drain(self) -> list[Result]:
        """Run to the end. On Ctrl-C it closes itself and raises Interrupted, which carries the results so far."""
        try:
            for _ in self:
                pass
        except KeyboardInterrupt as interruption:
            self.close()
            raise Interrupted(self.results()) from interruption
        return self.results()

    def results(self) -> list[Result]:
        """What each completion has got so far, in their order; those that still run count as cancelled."""
        return [
            self._engine.result(ticket, completion)
            for ticket, completion in zip(self._tickets, self._completions, strict=True)
        ]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during generation; ``results`` holds what there was."""

    def __init__(self, results: list[Result]) -> None:
        super().__init__(f"interrupted with {sum(len(result.token_ids) for result in results)} tokens generated")
        self.results = results
