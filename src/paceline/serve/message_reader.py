"""Reads a chat's answer, whole or in pieces: reasoning first, then content and calls of tools."""

from typing import final

from paceline.serve.answer_grammar import Thought
from paceline.serve.message_parts import Parts, joined
from paceline.serve.reasoning import ReasoningReader
from paceline.serve.tool_reader import ToolReader
from paceline.serve.tools import Tools


@final
class MessageReader:
    """Splits the text of one output. How it was cut makes no difference, so a whole answer is its stream's, joined."""

    def __init__(self, tools: Tools | None, thought: Thought | None) -> None:
        self._reasoning = None if thought is None else ReasoningReader(thought.form, thought.beginning)
        self._calls = ToolReader(tools.form, tuple(tools.callable)) if tools is not None and tools.callable else None
        self.called = False  # whether there was a call

    def push(self, text: str, *, ended: bool) -> Parts:
        """What is certain once ``text`` has arrived; all that is left where it has ``ended``."""
        found: list[Parts] = []
        if self._reasoning is None:
            found.append(self._content(text))
        else:
            split = [self._reasoning.push(text), *([self._reasoning.finish()] if ended else [])]
            found += [joined([Parts(reasoning=reasoning), self._content(content)]) for reasoning, content in split]
        if ended and self._calls is not None:
            found.append(self._calls.finish())
        parts = joined(found)
        self.called = self.called or bool(parts.calls)
        return parts

    def whole(self, text: str) -> Parts:
        """All of an answer."""
        return self.push(text, ended=True)

    def _content(self, text: str) -> Parts:
        return Parts(content=text) if self._calls is None else self._calls.push(text)
