"""Incremental detokenization: the text of tokens that arrive one at a time, in complete UTF-8 characters."""

from collections.abc import Sequence
from typing import final

from paceline.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"  # stands for an incomplete character
CONTEXT = 8  # tokens that affect how the next one decodes: a leading space, a character of up to four bytes
LONGEST = 16  # tokens decoded together


@final
class TextStream:
    """Decodes the tokens after ``prompt``: the results of ``push`` and one ``flush`` add up to their text.

    Every token is decoded together with a few before it, so spaces that depend on neighbours are correct. At most one
    character is held back: a trailing U+FFFD, which the next token may complete. Skipped special tokens do not affect
    the tokens around them.
    """

    def __init__(self, *, tokenizer: Tokenizer, prompt: Sequence[int], skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._window = [token for token in prompt if self._has_text(token)]
        self._given = 0  # characters of the window's text that have been returned, or belong to the prompt
        self._shorten()
        # The prompt may end inside a character. Its U+FFFD counts as new text only if a token completes it.
        self._prompt_open = len(self._decode(self._window)) > self._given

    def push(self, token: int) -> str:
        """The text that is complete with ``token``, possibly none."""
        if not self._has_text(token):
            return ""
        self._window.append(token)
        text = self._decode(self._window)
        fresh = self._take(text, len(text) - text.endswith(REPLACEMENT))
        if len(self._window) > LONGEST:
            self._shorten()
        return fresh

    def flush(self) -> str:
        """The text still held back, an incomplete character as U+FFFD. Call it once, at the end."""
        text = self._decode(self._window)
        return self._take(text, len(text))

    def _take(self, text: str, end: int) -> str:
        """The new part of ``text`` before ``end``."""
        if self._prompt_open and end > self._given:
            self._given += text[self._given] == REPLACEMENT
            self._prompt_open = False
        fresh = text[self._given : end]
        self._given = max(self._given, end)
        return fresh

    def _shorten(self) -> None:
        """Keep the last tokens. The start of their text may decode differently now, the end does not."""
        self._window = self._window[-CONTEXT:]
        text = self._decode(self._window)
        self._given = len(text) - text.endswith(REPLACEMENT)

    def _has_text(self, token: int) -> bool:
        known = self._tokenizer.is_known(token)
        return known and not (self._skip_special and self._tokenizer.is_special(token))

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special=self._skip_special)
