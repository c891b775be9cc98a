"""Stops streamed text at a stop string, holding back text that may be the start of one."""

from collections.abc import Sequence
from typing import final


@final
class StopStrings:
    """A filter for streamed text. The result does not depend on how the text is split into pushes.

    The text ends at the first character that completes a stop string, the longest one if several complete there:
    before the stop string, or with ``include`` after it. The longest suffix of the text that is a proper prefix of a
    stop string is held back, so nothing returned is ever retracted. Raises ValueError for stops that are no list of
    strings, or contain an empty one. Takes time linear in the text.
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
        """The text that can be returned after ``text`` has arrived; empty once a stop string has matched.

        Unless ``armed``, stop strings that complete in ``text`` do not match; one that starts there may complete later.
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
        while not state.following and state is not root:  # completed while not armed, and is no prefix of a longer one
            state = state.shorter
        self._state = state
        shown = len(pending) - state.length
        self._held = pending[shown:]
        return pending[:shown]

    def flush(self) -> str:
        """The text held back, at the end of the stream."""
        held, self._held, self._state = self._held, "", self._root
        return held

    def _end(self, text: str, matched: str) -> str:
        self._matched, self._held = matched, ""
        return text if self._include else text[: len(text) - len(matched)]


class _State:
    """A state of the automaton: the longest suffix of the text that is a prefix of a stop string."""

    __slots__ = ("following", "length", "matched", "shorter")

    def __init__(self, length: int) -> None:
        self.length = length
        self.following: dict[str, _State] = {}
        self.shorter: _State = self  # the next shorter such suffix; the empty one has itself
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
