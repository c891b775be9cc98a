"""Ends a text that arrives in pieces at a stop string, holding back what may be its beginning. Knows no tokens."""

from collections.abc import Sequence
from typing import final


@final
class StopStrings:
    """A filter for text in pieces. However the text is cut into pushes, the same text comes out.

    The first character at which any stop string completes decides; of those completing there the longest matches. The
    text ends before it, or with ``include`` after it, and the rest is dropped. Held back is the longest end of the text
    that begins a stop string without completing it, so nothing shown is ever taken back. Raises ValueError for stops
    that are no list of strings, or contain an empty one. Takes time linear in the text.
    """

    def __init__(self, *, stops: Sequence[str], include: bool = False) -> None:
        _check(stops)
        self._include = include
        self._root = _automaton(stops)
        self._state = self._root
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, or None while none has."""
        return self._matched

    def push(self, text: str, *, armed: bool = True) -> str:
        """What may be shown now that ``text`` has followed; nothing once a stop string has matched.

        Unless ``armed``, no stop string matches by completing in ``text``; one that begins there may complete later.
        """
        if self._matched is not None:
            return ""
        state, root = self._state, self._root
        pending = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            while character not in state.following and state is not root:
                state = state.shorter
            state = state.following.get(character, root)
            if armed and state.matched is not None:
                return self._end(pending[:end], state.matched)
        while not state.following and state is not root:  # completed while not armed, and begins no longer one
            state = state.shorter
        self._state = state
        shown = len(pending) - state.length
        self._held = pending[shown:]
        return pending[:shown]

    def flush(self) -> str:
        """What is held back, at the end of the text."""
        held, self._held, self._state = self._held, "", self._root
        return held

    def _end(self, text: str, matched: str) -> str:
        self._matched, self._held = matched, ""
        return text if self._include else text[: len(text) - len(matched)]


class _State:
    """The longest end of the text so far that begins a stop string."""

    __slots__ = ("following", "length", "matched", "shorter")

    def __init__(self, length: int) -> None:
        self.length = length
        self.following: dict[str, _State] = {}
        self.shorter: _State = self  # the next shorter such end; the empty one has itself
        self.matched: str | None = None  # the longest stop string that ends here


def _automaton(stops: Sequence[str]) -> _State:
    """The root of the Aho-Corasick automaton of ``stops``."""
    root = _State(0)
    for stop in stops:
        state = root
        for character in stop:
            state = state.following.setdefault(character, _State(state.length + 1))
        state.matched = stop
    level = list(root.following.values())
    for state in level:
        state.shorter = root
    while level:
        below: list[_State] = []
        for state in level:
            for character, longer in state.following.items():
                shorter = state.shorter
                while character not in shorter.following and shorter is not root:
                    shorter = shorter.shorter
                longer.shorter = shorter.following.get(character, root)
                longer.matched = longer.matched or longer.shorter.matched
                below.append(longer)
        level = below
    return root


def _check(stops: Sequence[str]) -> None:
    if isinstance(stops, str):
        raise ValueError(f"stops={stops!r} is one string: give a list of stop strings")
    for index, stop in enumerate(stops):
        if not isinstance(stop, str):
            raise ValueError(f"stops[{index}] is {stop!r}: give stop strings, or token ids as stop tokens")
        if not stop:
            raise ValueError(f"stops[{index}] is empty and would stop before any text: leave it out")
