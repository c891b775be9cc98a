"""What the text of a chat's answer consists of: reasoning, content, and calls of tools."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPart:
    """A part of the call number ``index``; the first one has its ``id`` and ``name``."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""  # JSON, or a piece of it

    @property
    def json(self) -> dict[str, object]:
        """As OpenAI's clients read it."""
        function = {"arguments": self.arguments} if self.name is None else {"name": self.name}
        first = {} if self.name is None else {"id": self.id, "type": "function"}
        return {**first, "function": function | {"arguments": self.arguments}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A piece of an answer, or all of it; pieces are joined by ``joined``."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[CallPart, ...] = field(default_factory=tuple)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to send."""
        return not (self.reasoning or self.content or self.calls)


def joined(pieces: Iterable[Parts]) -> Parts:
    """The pieces as one, with one part for each call."""
    pieces = list(pieces)
    calls: dict[int, CallPart] = {}
    for part in (call for piece in pieces for call in piece.calls):
        known = calls.get(part.index)
        calls[part.index] = part if known is None else replace(known, arguments=known.arguments + part.arguments)
    return Parts(
        reasoning="".join(piece.reasoning for piece in pieces),
        content="".join(piece.content for piece in pieces),
        calls=tuple(calls.values()),
    )


def held(text: str, mark: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of ``mark``."""
    longest = min(len(text), len(mark) - 1)
    return next((size for size in range(longest, 0, -1) if mark.startswith(text[-size:])), 0)
