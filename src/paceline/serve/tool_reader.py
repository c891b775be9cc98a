"""Finds the calls of tools in the text of an answer, which may arrive in pieces."""

import secrets
import string
from collections.abc import Callable, Sequence
from typing import final

from paceline.serve.message_parts import CallPart, Parts, held, joined
from paceline.serve.tool_formats import OPENING, SPACES, Element, ToolFormat, matched

ALPHABET = string.ascii_letters + string.digits
SPACE = "".join(SPACES)


@final
class ToolReader:
    """Splits text into content and calls of ``names``; how it was cut makes no difference.

    A call is given from where its arguments begin, piece by piece. What does not begin as a call of one of ``names``
    is content. White space around calls is left out.
    """

    def __init__(self, form: ToolFormat, names: Sequence[str]) -> None:
        self._form, self._names = form, tuple(names)
        self._text, self._ended = "", False
        self._number = -1  # of the latest call
        self._depth, self._quoted, self._escaped = 0, False, False  # in its arguments
        self._after_call = False  # nothing but white space came since
        # Each reads what it can of the text and says who goes on; None waits for more.
        self._state: Callable[[list[Parts]], str | None] = self._outside if form.marked else self._beginning

    def push(self, text: str) -> Parts:
        """What is certain once ``text`` has arrived."""
        self._text += text
        return self._read()

    def finish(self) -> Parts:
        """What was held back, at the end of the text."""
        self._ended = True
        return self._read()

    def _read(self) -> Parts:
        found: list[Parts] = []
        states = {"outside": self._outside, "mark": self._mark, "arguments": self._arguments, "after": self._after}
        while (following := self._state(found)) is not None:
            self._state = states[following]
        return joined(found)

    def _beginning(self, found: list[Parts]) -> str | None:
        """Of a format without a mark: calls from the start of the answer on, or none."""
        return self._call(found, self._form.before, self._text.lstrip(SPACE)) or self._unless_waiting("outside")

    def _outside(self, found: list[Parts]) -> str | None:
        if self._after_call:
            self._text = self._text.lstrip(SPACE)
        mark = self._form.mark if self._form.marked else ""
        start = self._text.find(mark) if mark else -1
        end = start if start >= 0 else len(self._text) - held(self._text, mark)
        if mark and not (self._ended and start < 0):  # white space is left out before a call, and kept elsewhere
            end = len(self._text[:end].rstrip(SPACE))
        if self._ended and start < 0:
            end = len(self._text)
        self._give(found, end)
        if start < 0:
            return None
        return "mark"

    def _mark(self, found: list[Parts]) -> str | None:
        """The text begins with white space and the mark."""
        following = self._call(found, self._form.before, self._text.lstrip(SPACE))
        if following is None and not self._waiting:
            self._give(found, len(self._text) - len(self._text.lstrip(SPACE)) + len(self._form.mark))
            return "outside"
        return following

    def _arguments(self, found: list[Parts]) -> str | None:
        end = len(self._text)
        for at, character in enumerate(self._text):
            if self._quoted:
                self._quoted = character != '"' or self._escaped
                self._escaped = character == "\\" and not self._escaped
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    end = at + 1
                    break
        piece, self._text = self._text[:end], self._text[end:]
        if piece:
            found.append(Parts(calls=(CallPart(index=self._number, arguments=piece),)))
        return "after" if self._depth == 0 else None

    def _after(self, found: list[Parts]) -> str | None:
        """Behind the arguments of a call: another call, the end of calls, or what is neither."""
        closing: tuple[Element, ...] = ("}",)
        following = self._call(found, (*closing, *self._form.between), self._text)
        if following is not None:
            return following
        if self._waiting and not self._ended:
            return None
        end = matched((*closing, *self._form.behind), self._text)
        if end == -1:
            if self._ended:
                self._text = ""  # cut off inside the marks
            return None
        self._text = self._text[end or 0 :]
        return "outside"

    def _call(self, found: list[Parts], before: Sequence[Element], text: str) -> str | None:
        """Begin the call that ``text`` begins with; else None, and ``_waiting`` whether it may become one."""
        ends = {name: matched((*before, f"{OPENING}{self._form.head(name)}{{"), text) for name in self._names}
        name = next((name for name, end in ends.items() if end is not None and end > 0), None)
        self._waiting = name is None and not self._ended and -1 in ends.values()
        if name is None:
            return None
        self._text = text[(ends[name] or 0) - 1 :]
        self._number += 1
        self._depth, self._after_call = 0, True
        identity = "".join(secrets.choice(ALPHABET) for _ in range(self._form.id_length))
        prefix = "call_" if self._form.id_length > 9 else ""
        found.append(Parts(calls=(CallPart(index=self._number, id=prefix + identity, name=name),)))
        return "arguments"

    def _unless_waiting(self, state: str) -> str | None:
        return None if self._waiting else state

    def _give(self, found: list[Parts], end: int) -> None:
        """The text up to ``end`` is content."""
        if end > 0:
            found.append(Parts(content=self._text[:end]))
            self._text, self._after_call = self._text[end:], False
