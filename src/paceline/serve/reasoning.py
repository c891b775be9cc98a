"""Reasoning between tags: which parsers there are, and how the text of an answer is split."""

from dataclasses import dataclass
from typing import Literal, final

from paceline.serve.message_parts import held


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """The tags around reasoning. ``assumed``: it is there even without an opening tag, unless the prompt closed it."""

    opening: str = "<think>"
    closing: str = "</think>"
    assumed: bool = False

    def begins(self, prompt: str) -> "Beginning":
        """How an answer after ``prompt`` begins: the chat template may have opened reasoning, or closed it."""
        written = prompt.rstrip()
        if written.endswith(self.opening):
            return "inside"
        if written.endswith(self.closing):
            return "outside"
        return "assumed" if self.assumed else "open"


Beginning = Literal["inside", "outside", "open", "assumed"]  # open: a tag decides; assumed: inside, tag or not
REASONING_FORMATS = {  # by vLLM's names
    "deepseek_r1": ReasoningFormat(assumed=True),
    "qwen3": ReasoningFormat(),
    "mistral": ReasoningFormat(opening="[THINK]", closing="[/THINK]"),
}


@final
class ReasoningReader:
    """Splits text that arrives in pieces into reasoning and the rest; how it was cut makes no difference.

    Tags are left out, and so is white space before an opening tag. Everything else is kept.
    """

    def __init__(self, form: ReasoningFormat, beginning: Beginning) -> None:
        self._form, self._state, self._text = form, beginning, ""

    def push(self, text: str) -> tuple[str, str]:
        """What is certain of the reasoning and of the rest, once ``text`` has arrived."""
        self._text += text
        if self._state in ("open", "assumed"):
            bare, opening = self._text.lstrip(), self._form.opening
            if bare.startswith(opening):
                self._state, self._text = "inside", bare.removeprefix(opening)
            elif opening.startswith(bare):
                return "", ""
            else:
                self._state = "inside" if self._state == "assumed" else "outside"
        if self._state == "inside":
            before, closing, after = self._text.partition(self._form.closing)
            if not closing:
                cut = len(self._text) - held(self._text, self._form.closing)
                before, self._text = self._text[:cut], self._text[cut:]
                return before, ""
            self._state, self._text = "outside", ""
            return before, after
        rest, self._text = self._text, ""
        return "", rest

    def finish(self) -> tuple[str, str]:
        """What was held back, at the end of the text."""
        rest, self._text = self._text, ""
        return (rest, "") if self._state in ("inside", "assumed") else ("", rest)
