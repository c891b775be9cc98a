"""Recovers the token ids that a server sampled from what its completions report.

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

TOKEN_ID_PREFIX = "token_id:"  # vLLM's return_tokens_as_token_ids
MIN_UNIQUE = 0.9  # share of the vocabulary whose strings must be unique for token strings to be used


class TokenSource(Enum):
    """What token ids are recovered from, best first; the values are for people."""

    TOKEN_IDS = "token ids"
    TOKEN_STRINGS = "token strings"
    TEXT = "re-encoded text"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredTokens:
    """Token ids of a completion, with the end-of-text token where it was sampled."""

    token_ids: tuple[int, ...]
    truncated: bool = False  # the completion continues with tokens that are not known


@final
class TokenRecovery:
    """Recovers token ids from one source. All end-of-text tokens count as the first, as servers do not report which.

    TOKEN_IDS are exact. With TOKEN_STRINGS, a completion is read up to the first string that is not unique, and
    ``conditional_probs`` conditions on the readable tokens, so that the rest is exact too. With TEXT the text is
    re-encoded, and dropped where that cannot be what was sampled.
    """

    def __init__(self, *, source: TokenSource, tokenizer: Tokenizer, eos: Sequence[int], vocab_size: int) -> None:
        self.source = source
        self._tokenizer, self._eos, self._vocab_size = tokenizer, tuple(eos), vocab_size
        self._unique = unique_strings(tokenizer, vocab_size) if source is TokenSource.TOKEN_STRINGS else {}
        self._readable = torch.ones(vocab_size, dtype=torch.bool)
        if source is TokenSource.TOKEN_STRINGS:
            self._readable.fill_(False)
            self._readable[[*self._unique.values(), *self._eos]] = True

    def recover(self, prompt: Sequence[int], completion: Completion) -> RecoveredTokens | None:
        """The token ids; None where they cannot be known. Raises ServerError for ids outside the vocabulary."""
        if self.source is TokenSource.TEXT:
            return self._from_text(prompt, completion)
        if self.source is TokenSource.TOKEN_STRINGS:
            return self._from_strings(completion)
        token_ids = reported_ids(completion)
        if token_ids is None:
            return None
        outside = next((token for token in token_ids if not 0 <= token < self._vocab_size), None)
        if outside is not None:
            raise ServerError(
                f"the server reports token id {outside}, and the model's vocabulary has {self._vocab_size}: it serves "
                "another model"
            )
        return RecoveredTokens(token_ids=self._with_eos(token_ids, completion.stopped))

    def conditional_probs(self, probs: Tensor) -> Tensor:
        """``probs`` [T, V] over the tokens that ``recover`` tells apart, given that the token is one of them."""
        if len(self._eos) > 1:
            probs = probs.clone()
            rest = list(self._eos[1:])
            probs[:, self._eos[0]] += probs[:, rest].sum(-1)
            probs[:, rest] = 0.0
        if self.source is not TokenSource.TOKEN_STRINGS:
            return probs
        readable = probs * self._readable
        return readable / readable.sum(-1, keepdim=True)

    def _from_strings(self, completion: Completion) -> RecoveredTokens | None:
        strings = completion.tokens
        if strings is None:
            return None
        if completion.stopped and strings[-1:] == ("",):  # the end-of-text token, without a string
            strings = strings[:-1]
        known: list[int] = []
        for string in strings:
            token = self._unique.get(string)
            if token is None:
                return RecoveredTokens(token_ids=tuple(known), truncated=True)
            known.append(token)
        return RecoveredTokens(token_ids=self._with_eos(known, completion.stopped))

    def _from_text(self, prompt: Sequence[int], completion: Completion) -> RecoveredTokens | None:
        encoded = reencode(self._tokenizer, prompt, completion.text)
        if encoded is None:
            return None
        token_ids = self._with_eos(encoded, completion.stopped)
        counts = (None, len(token_ids), len(token_ids) - (completion.stopped and bool(self._eos)))
        return RecoveredTokens(token_ids=token_ids) if token_ids and completion.num_tokens in counts else None

    def _with_eos(self, token_ids: Sequence[int], stopped: bool) -> tuple[int, ...]:
        """``token_ids`` with the end-of-text token that ended them, whether or not the server reports it."""
        has_eos = bool(token_ids) and token_ids[-1] in self._eos
        if stopped and not has_eos and self._eos:
            return (*token_ids, self._eos[0])
        return (*token_ids[:-1], self._eos[0]) if has_eos else tuple(token_ids)


def choose_source(completions: Sequence[Completion], *, tokenizer: Tokenizer, vocab_size: int) -> TokenSource:
    """The best source that all ``completions`` allow."""
    if all(reported_ids(completion) is not None for completion in completions):
        return TokenSource.TOKEN_IDS
    if all(completion.tokens is not None for completion in completions):
        if len(unique_strings(tokenizer, vocab_size)) >= MIN_UNIQUE * min(tokenizer.size, vocab_size):
            return TokenSource.TOKEN_STRINGS
    return TokenSource.TEXT


def reported_ids(completion: Completion) -> tuple[int, ...] | None:
    """The token ids, if the server reports them in either of the two known forms."""
    if completion.token_ids is not None:
        return completion.token_ids
    strings, size = completion.tokens, len(TOKEN_ID_PREFIX)
    if strings is None or not all(one.startswith(TOKEN_ID_PREFIX) and one[size:].isdecimal() for one in strings):
        return None
    return tuple(int(one[size:]) for one in strings)


def unique_strings(tokenizer: Tokenizer, vocab_size: int) -> dict[str, int]:
    """Tokens by the string that each alone decodes to, where no other token decodes to it."""
    known = [token for token in range(vocab_size) if tokenizer.is_known(token)]
    decoded = {token: tokenizer.decode([token], skip_special=False) for token in known}
    counts = Counter(decoded.values())
    return {text: token for token, text in decoded.items() if text and REPLACEMENT not in text and counts[text] == 1}


def reencode(tokenizer: Tokenizer, prompt: Sequence[int], text: str) -> tuple[int, ...] | None:
    """Tokens that decode to ``text`` after ``prompt``; None where encoding finds none, as inside a character."""
    if REPLACEMENT in text:
        return None
    whole = tokenizer.encode(_decode(tokenizer, (), prompt) + text)
    candidates = [tuple(tokenizer.encode(text, special=False))]
    if whole[: len(prompt)] == list(prompt):
        candidates.append(tuple(whole[len(prompt) :]))
    return next((tokens for tokens in candidates if _decode(tokenizer, prompt, tokens) == text), None)


def _decode(tokenizer: Tokenizer, prompt: Sequence[int], tokens: Sequence[int]) -> str:
    """The text of ``tokens`` after ``prompt``."""
    stream = TextStream(tokenizer=tokenizer, prompt=prompt)
    return "".join(map(stream.push, tokens)) + stream.flush()
