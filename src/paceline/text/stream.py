"""Text of tokens that arrive one at a time, never half a character. Knows nothing of where they come from."""

from collections.abc import Sequence
from typing import final

from paceline.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"  # stands for bytes that are no complete character
CONTEXT = 8  # prompt tokens that decide how the first new one is spelled (a leading space, a split character)


@final
class TextStream:
    """Decodes the continuation of ``prompt``: all that ``push`` and one ``flush`` give is the text of the new tokens.

    Every token is decoded together with a few before it, so spaces that depend on neighbours come out right; text
    that ends inside a character waits for the token that completes it.
    """

    def __init__(self, *, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(prompt[-CONTEXT:])
        self._start = 0  # where decoding begins; text before it is settled
        self._given = len(self._tokens)  # tokens whose text has been given

    def push(self, token: int) -> str:
        """Text that ``token`` completes, possibly none."""
        self._tokens.append(token)
        fresh = self._fresh()
        if not fresh or fresh.endswith(REPLACEMENT):
            return ""
        self._start, self._given = self._given, len(self._tokens)
        return fresh

    def flush(self) -> str:
        """What is still held back, an incomplete character as U+FFFD."""
        fresh = self._fresh()
        self._start, self._given = self._given, len(self._tokens)
        return fresh

    def _fresh(self) -> str:
        known = self._tokenizer.decode(self._tokens[self._start : self._given]).rstrip(REPLACEMENT)
        return self._tokenizer.decode(self._tokens[self._start :])[len(known) :]
