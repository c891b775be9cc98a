"""Which tokens a server drew, from what it tells of them. Knows nothing of HTTP, nor of laws beyond their shape.

T tokens, V vocabulary.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import final

import torch
from torch import Tensor

from paceline.audit.client import Completion, ServerError
from paceline.text.stream import REPLACEMENT, TextStream
from paceline.text.tokenizer import Tokenizer

NUMBERED = "token_id:"  # how vLLM spells a token that is asked for by its number
ENOUGH = 0.9  # of the vocabulary must have a spelling of its own for spellings to be read


class Telling(Enum):
    """How tokens are known, best first; the value is for people."""

    NUMBERS = "token ids"
    SPELLINGS = "token strings"
    TEXT = "texts encoded anew"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Tokens that a text consists of, an end-of-text token at the end where it was drawn."""

    tokens: tuple[int, ...]
    cut: bool = False  # the text goes on with tokens that are not known


@final
class Reader:
    """Reads tokens by one way of telling. All end-of-text tokens count as the first, for no server says which it was.

    By NUMBERS tokens are known exactly. By SPELLINGS a text is read up to the first token whose spelling is not its
    own, and laws are those among tokens that have their own: exact as well, for what is left. By TEXT the text is
    encoded, and left out where that cannot be what was drawn.
    """

    def __init__(self, *, telling: Telling, tokenizer: Tokenizer, eos: Sequence[int], vocab_size: int) -> None:
        self.telling = telling
        self._tokenizer, self._eos, self._vocab_size = tokenizer, tuple(eos), vocab_size
        self._spelled = spellings(tokenizer, vocab_size) if telling is Telling.SPELLINGS else {}
        self._readable = torch.ones(vocab_size, dtype=torch.bool)
        if telling is Telling.SPELLINGS:
            self._readable.fill_(False)
            self._readable[[*self._spelled.values(), *self._eos]] = True

    def read(self, prompt: Sequence[int], completion: Completion) -> Drawn | None:
        """The tokens; None where they cannot be known. Raises ServerError for ids outside the vocabulary."""
        if self.telling is Telling.TEXT:
            tokens = encode_again(self._tokenizer, prompt, completion.text)
            if tokens is None:
                return None
            tokens = self._ended(tokens, completion.stopped)
            counts = (None, len(tokens), len(tokens) - (completion.stopped and bool(self._eos)))
            return Drawn(tokens=tokens) if tokens and completion.num_tokens in counts else None
        if self.telling is Telling.NUMBERS:
            numbers = numbers_of(completion)
            if numbers is None:
                return None
            outside = next((token for token in numbers if not 0 <= token < self._vocab_size), None)
            if outside is not None:
                raise ServerError(
                    f"the server gives token {outside}, and the model has {self._vocab_size}: it serves another model"
                )
            return Drawn(tokens=self._ended(numbers, completion.stopped))
        if completion.tokens is None:
            return None
        known: list[int] = []
        silent = completion.stopped and completion.tokens[-1:] == ("",)  # the end of the text, without a spelling
        for spelling in completion.tokens[:-1] if silent else completion.tokens:
            token = self._spelled.get(spelling)
            if token is None:
                return Drawn(tokens=tuple(known), cut=True)
            known.append(token)
        return Drawn(tokens=self._ended(known, completion.stopped))

    def laws(self, laws: Tensor) -> Tensor:
        """Laws [T, V] of tokens as they are read here."""
        if len(self._eos) > 1:
            laws = laws.clone()
            rest = list(self._eos[1:])
            laws[:, self._eos[0]] += laws[:, rest].sum(-1)
            laws[:, rest] = 0.0
        if self.telling is not Telling.SPELLINGS:
            return laws
        among = laws * self._readable
        return among / among.sum(-1, keepdim=True)

    def _ended(self, tokens: Sequence[int], stopped: bool) -> tuple[int, ...]:
        """With the end-of-text token that ended the text, whether the server counts it or not."""
        ends = bool(tokens) and tokens[-1] in self._eos
        if stopped and not ends and self._eos:
            return (*tokens, self._eos[0])
        return (*tokens[:-1], self._eos[0]) if ends else tuple(tokens)


def choose_telling(completions: Sequence[Completion], *, tokenizer: Tokenizer, vocab_size: int) -> Telling:
    """The best way that all ``completions`` allow."""
    if all(numbers_of(completion) is not None for completion in completions):
        return Telling.NUMBERS
    if all(completion.tokens is not None for completion in completions):
        spelled = spellings(tokenizer, vocab_size)
        if len(spelled) >= ENOUGH * min(tokenizer.size, vocab_size):
            return Telling.SPELLINGS
    return Telling.TEXT


def numbers_of(completion: Completion) -> tuple[int, ...] | None:
    """Token ids, where a server gives them in one of the two ways that there are."""
    if completion.token_ids is not None:
        return completion.token_ids
    named = completion.tokens
    if named is None or not all(name.startswith(NUMBERED) and name[len(NUMBERED) :].isdecimal() for name in named):
        return None
    return tuple(int(name[len(NUMBERED) :]) for name in named)


def spellings(tokenizer: Tokenizer, vocab_size: int) -> dict[str, int]:
    """Tokens by what they decode to alone, those that share it with no other."""
    known = [token for token in range(vocab_size) if tokenizer.is_known(token)]
    alone = {token: tokenizer.decode([token], skip_special=False) for token in known}
    times = Counter(alone.values())
    return {text: token for token, text in alone.items() if text and REPLACEMENT not in text and times[text] == 1}


def encode_again(tokenizer: Tokenizer, prompt: Sequence[int], text: str) -> tuple[int, ...] | None:
    """Tokens that spell ``text`` after ``prompt``; None where encoding finds none, as inside a character."""
    if REPLACEMENT in text:
        return None
    whole = tokenizer.encode(spell(tokenizer, (), prompt) + text)
    candidates = [tuple(tokenizer.encode(text, special=False))]
    if whole[: len(prompt)] == list(prompt):
        candidates.append(tuple(whole[len(prompt) :]))
    return next((tokens for tokens in candidates if spell(tokenizer, prompt, tokens) == text), None)


def spell(tokenizer: Tokenizer, prompt: Sequence[int], tokens: Sequence[int]) -> str:
    """The text of ``tokens`` after ``prompt``."""
    stream = TextStream(tokenizer=tokenizer, prompt=prompt)
    return "".join(map(stream.push, tokens)) + stream.flush()
