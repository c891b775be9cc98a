"""Names to classes, imported only when asked for. Knows nothing of what the classes do."""

from collections.abc import Iterator
from importlib import import_module


class Registry:
    """A table of ``name -> "module:Class"``."""

    def __init__(self, kind: str, entries: dict[str, str]) -> None:
        self.kind = kind
        self.entries = entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.entries))

    def find(self, name: str) -> type:
        """The class called ``name``. Raises ValueError naming those that are known."""
        if name not in self.entries:
            raise ValueError(f"unknown {self.kind} {name!r}; known: {', '.join(self)}")
        module, _, attribute = self.entries[name].partition(":")
        return getattr(import_module(module), attribute)
