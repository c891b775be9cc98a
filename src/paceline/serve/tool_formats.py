"""How models write calls of tools, by the names of vLLM's parsers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Element: TypeAlias = str | None  # text as it stands; None: at most MOST_SPACE characters of white space
SPACES = (" ", "\n")
MOST_SPACE = 2
OPENING = '{"name": "'  # of every call, up to the name


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """Calls are ``{"name": NAME, KEY: ARGUMENTS}`` with what stands before, between and behind them.

    ``marked``: calls may follow text, from the first element of ``before`` on; otherwise they are the whole answer.
    """

    before: tuple[Element, ...]
    between: tuple[Element, ...]
    behind: tuple[Element, ...]
    key: str = "arguments"
    marked: bool = False
    hints: tuple[str, ...] = ()  # what a chat template of such a model contains
    id_length: int = 24  # of a call's

    @property
    def mark(self) -> str:
        """Where calls begin, in text or instead of it; at the start of an answer white space may precede it."""
        first = self.before[0] if self.before else None
        if self.marked:
            assert first is not None
            return first
        return f"{first or ''}{OPENING}"

    def head(self, name: str) -> str:
        """What follows the opening quote of a name, up to the arguments."""
        return f'{name}", {json.dumps(self.key)}: '


TOOL_FORMATS = {
    "hermes": ToolFormat(
        before=("<tool_call>", None),
        between=(None, "</tool_call>", None, "<tool_call>", None),
        behind=(None, "</tool_call>"),
        marked=True,
        hints=("<tool_call>",),
    ),
    "mistral": ToolFormat(
        before=("[TOOL_CALLS]", None, "["),
        between=(",", None),
        behind=(None, "]"),
        marked=True,
        hints=("[TOOL_CALLS]",),
        id_length=9,  # which its templates ask for
    ),
    "llama3_json": ToolFormat(
        before=(), between=(None, ";", None), behind=(), key="parameters", hints=('"parameters": ',)
    ),
    "json": ToolFormat(before=("[",), between=(None, ",", None), behind=(None, "]")),
}


def detected(template: str) -> ToolFormat | None:
    """The format that a chat template tells of; None if there is none, or more than one."""
    found = [form for form in TOOL_FORMATS.values() if any(hint in template for hint in form.hints)]
    return found[0] if len(found) == 1 else None


def matched(elements: Sequence[Element], text: str) -> int | None:
    """Where ``text`` goes on after ``elements``; -1 if it is too short to say, None if it does not begin so."""
    at = 0
    for element in elements:
        if element is None:
            at += next(
                (size for size in range(MOST_SPACE) if text[at + size : at + size + 1] not in SPACES), MOST_SPACE
            )
        elif text.startswith(element, at):
            at += len(element)
        else:
            return -1 if element.startswith(text[at:]) else None
    return at
