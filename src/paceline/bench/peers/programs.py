"""Programs held open between the configurations that use them. Starts none by itself, knows no peer."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar, final


class Program(Protocol):
    """What is held."""

    @property
    def has_ended(self) -> bool: ...

    def close(self) -> None: ...


P = TypeVar("P", bound=Program)


@final
class ProgramPool(Generic[P]):
    """At most ``limit`` programs, each under a key that says how it was started; the oldest is closed for a new one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._programs: dict[object, P] = {}

    def get(self, key: object, start: Callable[[], P]) -> P:
        """The program of this key; started where there is none, or it has ended."""
        found = self._programs.get(key)
        if found is not None and not found.has_ended:
            return found
        if found is not None:
            self._programs.pop(key).close()
        while len(self._programs) >= self._limit:
            self._programs.pop(next(iter(self._programs))).close()
        self._programs[key] = start()
        return self._programs[key]

    @property
    def last(self) -> P:
        """The one that was started last."""
        return list(self._programs.values())[-1]

    def close(self) -> None:
        """Close all."""
        while self._programs:
            self._programs.popitem()[1].close()
