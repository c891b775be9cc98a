"""Log-probabilities and perplexity of given sequences: continuations, prompts, whole texts.

All values are natural logarithms of the model's raw distribution, at temperature 1 and without filters.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from paceline.api.loading import Loaded, runnable
from paceline.api.prompts import Prompt, Prompts, encode, kind_of, read_prompt, split
from paceline.core.context import check_context, describe
from paceline.core.step import NOT_FINITE, NotFiniteError
from paceline.models.base import max_sequence_length
from paceline.models.scoring import Passage, PassageScore, TopTokens, score_passages

Continuation: TypeAlias = str | Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The log-probabilities of a continuation after its prompt."""

    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]  # of the continuation
    logprobs: tuple[float, ...]  # of each token, given all before it
    top: tuple[TopTokens, ...]  # for each token the most probable tokens at its position, as many as requested
    greedy: bool  # every token is the argmax: greedy decoding gives this continuation

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def total(self) -> float:
        """Log-probability of the whole continuation."""
        return math.fsum(self.logprobs)

    @property
    def perplexity(self) -> float:
        return _perplexity(self.total, self.num_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptScore:
    """The log-probabilities of a prompt's tokens; None for the first, which has nothing before it."""

    tokens: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    top: tuple[TopTokens | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScore:
    """The log-probability of one text after its first token."""

    num_tokens: int  # scored: all but the first
    total: float  # their log-probability

    @property
    def perplexity(self) -> float:
        return _perplexity(self.total, self.num_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexity:
    """The perplexity of several texts; every token has the same weight."""

    texts: tuple[TextScore, ...]

    @property
    def num_tokens(self) -> int:
        return sum(text.num_tokens for text in self.texts)

    @property
    def total(self) -> float:
        return math.fsum(text.total for text in self.texts)

    @property
    def perplexity(self) -> float:
        return _perplexity(self.total, self.num_tokens)


def score(
    target: Loaded,
    prompts: Prompts | Sequence[Prompt | None] | None,
    continuations: Continuation | Sequence[Continuation],
    *,
    top: int = 0,
    batch_size: int | None = None,
) -> list[Score]:
    """Score each continuation, a text or token ids, after its prompt; results in order.

    prompts: one or several, each a text, token ids or chat messages. An empty text or None is the beginning-of-text
    token, if the tokenizer adds one. For an encoder-decoder they are what the encoder reads, or EncoderDecoderPrompts;
    the continuation is scored after the start token, or after what such a prompt gives in its place.

    A text continuation of a text prompt is encoded together with it, unless that changes the prompt's tokens. In that
    case, and after token ids and messages, it is encoded on its own, without special tokens.

    top: how many of the most probable tokens to return per position. batch_size: sequences per forward; None is up to
    16, fewer if they are long. It changes the result only by rounding.

    Raises ValueError, naming the prompt, before any work: for different numbers of prompts and continuations, empty
    ones, text without a tokenizer, tokens outside the vocabulary, and more tokens than the context holds; and
    afterwards NotFiniteError, which is one, where the target's logits are not finite.
    """
    known = _listed(prompts)
    wanted = split(continuations) if len(continuations) or isinstance(continuations, str) else []
    if len(known) != len(wanted):
        raise ValueError(
            f"{len(wanted)} continuations for {len(known)} prompts: give each prompt one; to score several after one "
            "prompt, repeat the prompt"
        )
    passages = [
        _passage(target, prompt, continuation, name=f"prompt {index}")
        for index, (prompt, continuation) in enumerate(zip(known, wanted, strict=True))
    ]
    return [
        Score(
            prompt_tokens=passage.tokens[: passage.first],
            tokens=passage.tokens[passage.first :],
            logprobs=found.logprobs,
            top=found.top,
            greedy=all(found.greedy),
        )
        for passage, found in _scored(target, passages, top, batch_size)
    ]


def prompt_logprobs(
    target: Loaded, prompts: Prompts, *, top: int = 0, batch_size: int | None = None
) -> list[PromptScore]:
    """Score the tokens of each prompt from the second on; results in order. Options and errors as in ``score``."""
    encoded = [read_prompt(target, prompt, name=f"prompt {index}") for index, prompt in enumerate(split(prompts))]
    passages = [Passage(tokens=tuple(one.tokens), first=1, context=one.context) for one in encoded]
    return [
        PromptScore(tokens=passage.tokens, logprobs=(None, *found.logprobs), top=(None, *found.top))
        for passage, found in _scored(target, passages, top, batch_size)
    ]


def perplexity(
    target: Loaded,
    texts: Continuation | Sequence[Continuation],
    *,
    stride: int | None = None,
    batch_size: int | None = None,
) -> Perplexity:
    """Perplexity of whole texts, each a string or token ids; every token but a text's first is scored once.

    A text longer than the context is scored in windows of the context's length, each ``stride`` tokens after the last,
    and only tokens new to a window are scored, so they see at least context - stride tokens. ``stride`` None is half
    the context; a smaller one gives more context and takes longer. An attention window shorter than the context
    replaces it. The first token of a text may be one that the tokenizer adds.

    Raises ValueError, naming the text, before any work: for fewer than two tokens, strings without a tokenizer, tokens
    outside the vocabulary; and for a stride that is not from 1 to the context minus 1. Afterwards NotFiniteError, which
    is one, where the target's logits are not finite.
    """
    if target.lm.context_inputs:
        raise ValueError(
            f"{target.name} reads {describe(target.lm.context_inputs)} beside a text: call score, which takes prompts "
            "and continuations"
        )
    context = max_sequence_length(target.lm)
    step = max(1, context // 2) if stride is None else stride
    if not 1 <= step < context:
        raise ValueError(f"stride={step}: give 1 to {context - 1}, less than the context of {context} tokens")
    encoded = [encode(target, text, name=f"text {index}") for index, text in enumerate(split(texts))]
    passages: list[Passage] = []
    owners: list[int] = []
    for index, tokens in enumerate(encoded):
        if len(tokens) < 2:
            raise ValueError(f"text {index}: one token alone has nothing before it: give at least two, or leave it out")
        _check_vocabulary(target, tokens, name=f"text {index}")
        for begin, first, end in windows(len(tokens), context, step):
            passages.append(Passage(tokens=tuple(tokens[begin:end]), first=first - begin))
            owners.append(index)
    sums: list[list[float]] = [[] for _ in encoded]
    for owner, found in zip(owners, score_passages(runnable(target), passages, batch_size=batch_size), strict=True):
        _check_finite(found, name=f"text {owner}")
        sums[owner].extend(found.logprobs)
    return Perplexity(texts=tuple(TextScore(num_tokens=len(logs), total=math.fsum(logs)) for logs in sums))


def windows(length: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(begin, first scored, end) of each window over a text; every token but the first is scored once."""
    begin, first, end = 0, 1, min(length, context)
    yield begin, first, end
    while end < length:
        first, end = end, min(end + stride, length)
        yield end - context, first, end


def _listed(prompts: Prompts | Sequence[Prompt | None] | None) -> list[Prompt | None]:
    """One prompt or several, possibly None, as a list. Raises ValueError if there is none."""
    return [None] if prompts is None else list(split(cast("Prompts", prompts)))


def _passage(target: Loaded, prompt: Prompt | None, continuation: Prompt, *, name: str) -> Passage:
    """A prompt and its continuation, neither empty."""
    text = prompt if prompt is not None else "" if target.tokenizer is not None else []
    encoded = read_prompt(target, text, name=name)
    before = encoded.tokens
    try:
        kind = kind_of(continuation)
    except ValueError as error:
        raise ValueError(f"{name}: continuation: {error}") from error
    if kind is int:
        after = [int(token) for token in cast("Sequence[int]", continuation)]
    elif not isinstance(continuation, str):
        raise ValueError(f"{name}: its continuation is a list of messages: give a text or token ids")
    elif target.tokenizer is None:
        raise ValueError(f"{name}: {target.name} has no tokenizer: give the continuation as token ids")
    else:
        joined = isinstance(text, str) and encoded.context is None
        whole = target.tokenizer.encode(f"{text}{continuation}") if joined else []
        same = joined and whole[: len(before)] == before
        after = whole[len(before) :] if same else target.tokenizer.encode(continuation, special=False)
    if not after:
        raise ValueError(f"{name}: empty continuation: give at least one token to score")
    return Passage(tokens=(*before, *after), first=len(before), context=encoded.context)


def _scored(
    target: Loaded, passages: Sequence[Passage], top: int, batch_size: int | None
) -> Iterator[tuple[Passage, PassageScore]]:
    """Each passage with its score. Raises ValueError for one that does not fit the target's vocabulary or context."""
    context = max_sequence_length(target.lm)
    for index, passage in enumerate(passages):
        _check_vocabulary(target, passage.tokens, name=f"prompt {index}")
        try:
            check_context(target.lm.context_inputs, passage.context)
        except ValueError as error:
            raise ValueError(f"prompt {index}: {error}") from error
        if len(passage.tokens) > context:
            raise ValueError(
                f"prompt {index}: {len(passage.tokens)} tokens in all are more than the context of {context}; shorten "
                "the text, or call perplexity, which reads long texts in windows"
            )
    found = score_passages(runnable(target), passages, top=top, batch_size=batch_size)
    for index, one in enumerate(found):
        _check_finite(one, name=f"prompt {index}")
    return zip(passages, found, strict=True)


def _check_finite(found: PassageScore, *, name: str) -> None:
    """A token may have no probability at all; NaN says that the logits were not finite."""
    for at, value in enumerate(found.logprobs):
        if math.isnan(value):
            raise NotFiniteError(f"{name}: scored token {at}: {NOT_FINITE}")


def _check_vocabulary(target: Loaded, tokens: Sequence[int], *, name: str) -> None:
    size = target.lm.vocab_size
    for token in (min(tokens), max(tokens)):
        if not 0 <= token < size:
            raise ValueError(
                f"{name}: token id {token} is outside the target's vocabulary of {size}; encode the text with the "
                "target's own tokenizer"
            )


def _perplexity(total: float, num_tokens: int) -> float:
    """exp(-total / num_tokens), infinite where that overflows."""
    try:
        return math.exp(-total / num_tokens)
    except OverflowError:
        return math.inf
