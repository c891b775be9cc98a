"""How likely a model finds texts that are already there: continuations, prompts, whole corpora. Generates nothing.

All numbers are of the model's raw distribution, temperature 1 and nothing cut, as natural logarithms.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from paceline.api.loading import Loaded, runnable
from paceline.api.prompts import Prompt, Prompts, encode, kind_of, split
from paceline.models.base import max_sequence_length
from paceline.models.scoring import Passage, TopTokens, score_passages

Continuation: TypeAlias = str | Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How likely a continuation is after its prompt."""

    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]  # of the continuation
    logprobs: tuple[float, ...]  # of each token, given all before it
    top: tuple[TopTokens, ...]  # for each token what was likeliest in its place, as many as were asked for
    greedy: bool  # every token is the argmax: greedy decoding would have written this very continuation

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
    """How likely a prompt's own tokens are. Nothing stands before the first one, so it has None."""

    tokens: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    top: tuple[TopTokens | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScore:
    """How likely one whole text is after its first token."""

    num_tokens: int  # scored, so without the first
    total: float  # their log-probability

    @property
    def perplexity(self) -> float:
        return _perplexity(self.total, self.num_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexity:
    """How likely several texts are; every token counts the same, whatever text it is of."""

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
    """Score each continuation, a text or token ids, after its prompt; in their order.

    prompts: one or several, each a text, token ids or chat messages. An empty text or None stands for the
    beginning-of-text token, where the tokenizer adds one.

    A continuation given as text is encoded together with its prompt if that too is a text and its tokens come out the
    same; what follows them is the continuation. Otherwise, as where a token would span the border or after token ids
    and messages, it is encoded on its own, without special tokens.

    top: how many of the likeliest tokens to give for each place. batch_size: texts scored at once; None takes up to 16,
    fewer where they are long. The result does not depend on it but for rounding.

    Raises ValueError, naming the prompt, before any work: counts that differ, nothing to score or to condition on,
    text without a tokenizer, tokens outside the vocabulary, and more tokens than the context holds.
    """
    known = _listed(prompts)
    wanted = split(continuations) if len(continuations) or isinstance(continuations, str) else []
    if len(known) != len(wanted):
        raise ValueError(
            f"{len(wanted)} continuations for {len(known)} prompts: give each prompt one; to score several after one "
            "prompt, repeat the prompt"
        )
    pairs = [
        _encode_pair(target, prompt, continuation, name=f"prompt {index}")
        for index, (prompt, continuation) in enumerate(zip(known, wanted, strict=True))
    ]
    passages = [Passage(tokens=(*before, *after), first=len(before)) for before, after in pairs]
    for index, passage in enumerate(passages):
        _check(target, passage, name=f"prompt {index}")
    scores = score_passages(runnable(target), passages, top=top, batch_size=batch_size)
    return [
        Score(
            prompt_tokens=passage.tokens[: passage.first],
            tokens=passage.tokens[passage.first :],
            logprobs=found.logprobs,
            top=found.top,
            greedy=all(found.greedy),
        )
        for passage, found in zip(passages, scores, strict=True)
    ]


def prompt_logprobs(
    target: Loaded, prompts: Prompts, *, top: int = 0, batch_size: int | None = None
) -> list[PromptScore]:
    """Score every prompt's own tokens from the second on; in their order. Parameters and errors as of ``score``."""
    passages = [
        Passage(tokens=tuple(encode(target, prompt, name=f"prompt {index}")), first=1)
        for index, prompt in enumerate(split(prompts))
    ]
    for index, passage in enumerate(passages):
        _check(target, passage, name=f"prompt {index}")
    scores = score_passages(runnable(target), passages, top=top, batch_size=batch_size)
    return [
        PromptScore(tokens=passage.tokens, logprobs=(None, *found.logprobs), top=(None, *found.top))
        for passage, found in zip(passages, scores, strict=True)
    ]


def perplexity(
    target: Loaded,
    texts: Continuation | Sequence[Continuation],
    *,
    stride: int | None = None,
    batch_size: int | None = None,
) -> Perplexity:
    """Perplexity of whole texts, each a string or token ids, with every token but the first of each text scored once.

    A text longer than the context is read in windows as long as the context, each ``stride`` tokens after the one
    before, in which only the tokens that are new are scored. So these see at least context - stride tokens. None is
    half the context; a smaller stride sees more and takes longer. An attention window shorter than the context counts
    in its place. The first token of a text may be one that the tokenizer adds.

    Raises ValueError, naming the text, before any work: fewer than two tokens, strings without a tokenizer, tokens
    outside the vocabulary; and for a stride that is not from 1 to the context less 1.
    """
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
        sums[owner].extend(found.logprobs)
    return Perplexity(texts=tuple(TextScore(num_tokens=len(logs), total=math.fsum(logs)) for logs in sums))


def windows(length: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(begin, first scored, end) of each window over a text: all tokens but the first are scored once."""
    begin, first, end = 0, 1, min(length, context)
    yield begin, first, end
    while end < length:
        first, end = end, min(end + stride, length)
        yield end - context, first, end


def _listed(prompts: Prompts | Sequence[Prompt | None] | None) -> list[Prompt | None]:
    """One prompt or several, None among them, as a list. Raises ValueError where there is none."""
    return [None] if prompts is None else list(split(cast("Prompts", prompts)))


def _encode_pair(
    target: Loaded, prompt: Prompt | None, continuation: Prompt, *, name: str
) -> tuple[list[int], list[int]]:
    """Tokens of a prompt and of its continuation, neither empty."""
    text = prompt if prompt is not None else "" if target.tokenizer is not None else []
    before = encode(target, text, name=name)
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
        whole = target.tokenizer.encode(text + continuation) if isinstance(text, str) else []
        alike = whole[: len(before)] == before
        after = whole[len(before) :] if alike else target.tokenizer.encode(continuation, special=False)
    if not after:
        raise ValueError(f"{name}: empty continuation: give at least one token to score")
    return before, after


def _check(target: Loaded, passage: Passage, *, name: str) -> None:
    """Raise ValueError unless the target can read the passage."""
    _check_vocabulary(target, passage.tokens, name=name)
    context = max_sequence_length(target.lm)
    if len(passage.tokens) > context:
        raise ValueError(
            f"{name}: {len(passage.tokens)} tokens in all are more than the context of {context}; shorten the text, or "
            "call perplexity, which reads long texts in windows"
        )


def _check_vocabulary(target: Loaded, tokens: Sequence[int], *, name: str) -> None:
    size = target.lm.vocab_size
    for token in (min(tokens), max(tokens)):
        if not 0 <= token < size:
            raise ValueError(
                f"{name}: token id {token} is outside the target's vocabulary of {size}; encode the text with the "
                "target's own tokenizer"
            )


def _perplexity(total: float, num_tokens: int) -> float:
    """exp(-total / num_tokens), infinite where that is beyond floating point."""
    try:
        return math.exp(-total / num_tokens)
    except OverflowError:
        return math.inf
