"""Text of tokens that arrive one at a time, never half a character. Knows nothing of where they come from."""

from collections.abc import Sequence
from typing import final

from paceline.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"  # stands for bytes that are no complete character
CONTEXT = 8  # tokens that decide how the next is spelled: a leading space, a character of up to four bytes
LONGEST = 16  # tokens decoded together


@final
class TextStream:
    """Decodes the continuation of ``prompt``: all that ``push`` and one ``flush`` give is the text of the new tokens.

    Every token is decoded together with a few before it, so spaces that depend on neighbours come out right. One
    character at most is held back: a U+FFFD at the end, which the next token may complete. Special tokens that are
    skipped stand between no two others.
    """

    def __init__(self, *, tokenizer: Tokenizer, prompt: Sequence[int], skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._window = [token for token in prompt if self._has_text(token)]
        self._given = 0  # characters of the window's text that are settled and have been given, or are the prompt's
        self._shorten()
        # The prompt may end inside a character: whether its U+FFFD stays decides if that position is new text.
        self._prompt_open = len(self._decode(self._window)) > self._given

    def push(self, token: int) -> str:
        """Text that ``token`` settles, possibly none."""
        if not self._has_text(token):
            return ""
        self._window.append(token)
        text = self._decode(self._window)
        fresh = self._take(text, len(text) - text.endswith(REPLACEMENT))
        if len(self._window) > LONGEST:
            self._shorten()
        return fresh

    def flush(self) -> str:
        """What is still held back, an incomplete character as U+FFFD. Ends the text."""
        text = self._decode(self._window)
        return self._take(text, len(text))

    def _take(self, text: str, end: int) -> str:
        """What is new in ``text`` before ``end``."""
        if self._prompt_open and end > self._given:
            self._given += text[self._given] == REPLACEMENT
            self._prompt_open = False
        fresh = text[self._given : end]
        self._given = max(self._given, end)
        return fresh

    def _shorten(self) -> None:
        """Keep the last tokens. Their beginning may read differently now, the end of their text does not."""
        self._window = self._window[-CONTEXT:]
        text = self._decode(self._window)
        self._given = len(text) - text.endswith(REPLACEMENT)

    def _has_text(self, token: int) -> bool:
        known = self._tokenizer.is_known(token)
        return known and not (self._skip_special and self._tokenizer.is_special(token))

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special=self._skip_special)
