"""Scores known sequences: log-probabilities of their tokens, the argmax and the most likely tokens at every position.

All of the model's raw distribution (temperature 1, no filters), as natural logarithms.
B rows, T tokens of the longest sequence, n = T - start scored positions, C chunk, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor

from paceline.core.admission import Admission, Prefix
from paceline.core.context import Context, check_context
from paceline.core.host import integers, numbers
from paceline.core.request import Request
from paceline.models.base import LM, LogitsFor
from paceline.models.prefill import CHUNK, Prefill, feed

TopTokens: TypeAlias = tuple[tuple[int, float], ...]  # (token, log-probability), likeliest first

LOGITS_BYTES = 1 << 28  # of one chunk's logits in single precision
CACHE_BYTES = 1 << 30  # of one batch's cache, unless the caller gives a batch size
MAX_ROWS = 16  # of one batch, unless the caller gives a batch size


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """Tokens to read, at least one, of which those from ``first`` (at least 1) on are scored.

    ``context`` is what a model reads beside tokens, for one that does.
    """

    tokens: tuple[int, ...]
    first: int
    context: Context | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageScore:
    """Of each scored token of a passage, on the host."""

    logprobs: tuple[float, ...]
    greedy: tuple[bool, ...]  # whether greedy decoding would have written the token
    top: tuple[TopTokens, ...]  # the requested number of most likely tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceScores:
    """Of tokens ``start`` to T - 1 of every row, on the device.

    Entries beyond a row's own sequence are undefined. The dtype is that of the logits, float32 at least.
    """

    logprobs: Tensor  # [B, n]
    greedy: Tensor  # [B, n] bool
    top_tokens: Tensor  # [B, n, top] the likeliest tokens, likeliest first
    top_logprobs: Tensor  # [B, n, top]


def score_passages(
    lm: LM, passages: Sequence[Passage], *, top: int = 0, batch_size: int | None = None
) -> list[PassageScore]:
    """Score passages that ``lm`` can read, in batches of similar length; results in their own order.

    ``batch_size`` None takes up to MAX_ROWS at once, fewer where they are long. Raises ValueError, before any work, for
    ``top`` outside 0 to V, a batch size below 1, and a passage without the context that ``lm`` reads.
    """
    if not 0 <= top <= lm.vocab_size:
        raise ValueError(f"top={top}: give 0 (none) to {lm.vocab_size}, the size of the vocabulary")
    for passage in passages:
        check_context(lm.context_inputs, passage.context)
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: give at least 1, or None for as many as fit")
    order = sorted(range(len(passages)), key=lambda index: -len(passages[index].tokens))
    results: dict[int, PassageScore] = {}
    while len(results) < len(order):
        rest = order[len(results) :]
        fitting = CACHE_BYTES // (len(passages[rest[0]].tokens) * lm.slot_bytes + lm.context_bytes)
        batch = rest[: batch_size or max(1, min(MAX_ROWS, fitting))]
        results.update(zip(batch, _score_batch(lm, [passages[index] for index in batch], top), strict=True))
    return [results[index] for index in range(len(passages))]


@torch.inference_mode()
def score_sequences(
    lm: LM, tokens: Tensor, length: Tensor, start: int, *, top: int = 0, contexts: Sequence[Context] = ()
) -> SequenceScores:
    """Score ``tokens`` [B, T] from ``start`` (static, at least 1) up to ``length`` [B], at most T.

    ``contexts`` are those of the rows, for a model that reads some.

    The sequences are read in chunks through the cached forward that decoding uses, and each chunk's logits are
    reduced at once, so memory does not grow with their length but for the cache. Nothing is copied to the host.
    """
    rows, longest = tokens.shape
    known = longest - 1  # the last token is scored and need not be read
    size = chunk_size(rows, lm.vocab_size)
    cache = lm.new_cache(rows, known).view()
    if contexts:
        cache = lm.admit(cache, _admission(contexts, tokens.device))
    pieces: list[tuple[Tensor, ...]] = []
    read = 0
    while read < known:
        wanted = read >= start - 1
        step = min(size, known - read) if wanted else min(CHUNK, start - 1 - read)
        count = (length - 1 - read).clamp(0, step)
        logits = feed(lm, cache, tokens, count, step, logits_for=LogitsFor.ALL if wanted else LogitsFor.NONE).logits
        if logits is not None:
            pieces.append(_reduce(logits, tokens[:, read + 1 : read + 1 + step], top))
        read += step
    logprobs, greedy, top_tokens, top_logprobs = (torch.cat(parts, dim=1) for parts in zip(*pieces, strict=True))
    return SequenceScores(logprobs=logprobs, greedy=greedy, top_tokens=top_tokens, top_logprobs=top_logprobs)


@final
class PromptScorer:
    """Scores prompts while they are read (prefill.Prefill): the logits of a chunk say what its next tokens are worth.

    ``text`` [B, T] holds the prompts; reading begins with their first token.
    """

    def __init__(self, text: Tensor, *, top: int) -> None:
        self._text, self._top = text, top
        self._pieces: list[tuple[Tensor, ...]] = []
        self._read = 0

    def __call__(self, logits: Tensor) -> None:
        """Take the logits [B, C, V] of the next chunk."""
        size = logits.shape[1]
        top = min(self._top, logits.shape[-1])
        self._pieces.append(_reduce(logits, self._text[:, self._read + 1 : self._read + 1 + size], top))
        self._read += size

    def scores(self, row: int, length: int, top: int) -> PassageScore:
        """Of the prompt of ``length`` tokens in ``row`` of the text, its first token excepted; all chunks are in."""
        if not self._pieces:
            return PassageScore(logprobs=(), greedy=(), top=())
        logprobs, greedy, tokens, values = (torch.cat(parts, dim=1) for parts in zip(*self._pieces, strict=True))
        tokens, values = tokens[..., :top], values[..., :top]
        scored = SequenceScores(logprobs=logprobs, greedy=greedy, top_tokens=tokens, top_logprobs=values)
        return _read(scored, row, slice(0, length - 1))


def chunk_size(rows: int, vocab_size: int) -> int:
    """Tokens per row read at once, such that ``rows`` of logits stay within LOGITS_BYTES; at least 1."""
    return max(1, min(CHUNK, LOGITS_BYTES // (4 * rows * vocab_size)))


def _score_batch(lm: LM, passages: Sequence[Passage], top: int) -> list[PassageScore]:
    """Score passages as one ragged batch."""
    lengths = [len(passage.tokens) for passage in passages]
    longest, start = max(lengths), min(passage.first for passage in passages)
    if start >= longest:
        return [PassageScore(logprobs=(), greedy=(), top=())] * len(passages)
    padded = [[*passage.tokens, *[0] * (longest - len(passage.tokens))] for passage in passages]
    tokens, length = (torch.tensor(values, device=lm.device) for values in (padded, lengths))
    contexts = [passage.context for passage in passages if passage.context is not None]
    scored = score_sequences(lm, tokens, length, start, top=top, contexts=contexts)
    return [_read(scored, row, slice(p.first - start, len(p.tokens) - start)) for row, p in enumerate(passages)]


def _admission(contexts: Sequence[Context], device: torch.device) -> Admission:
    """Of rows that begin with nothing but what they read beside tokens."""
    rows = range(len(contexts))
    requests = [Request(tokens=(0,), max_tokens=1, context=context) for context in contexts]
    return Admission(rows=rows, requests=requests, prefixes=[Prefix(row=row, length=0) for row in rows], device=device)


def _read(scored: SequenceScores, row: int, part: slice) -> PassageScore:
    """The scores of one passage."""
    logprobs, top = numbers(scored.logprobs[row, part]), scored.top_tokens.shape[-1]
    tokens, values = (
        integers(scored.top_tokens[row, part].flatten()),
        numbers(scored.top_logprobs[row, part]),
    )
    likeliest = list(zip(tokens, values, strict=True))
    return PassageScore(
        logprobs=tuple(logprobs),
        greedy=tuple(bool(same) for same in integers(scored.greedy[row, part])),
        top=tuple(tuple(likeliest[at * top : (at + 1) * top]) for at in range(len(logprobs))),
    )


def _reduce(logits: Tensor, tokens: Tensor, top: int) -> tuple[Tensor, ...]:
    """Reduce ``logits`` [B, C, V] for ``tokens`` [B, C]: logprobs, greedy, top tokens, top logprobs."""
    logprobs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    best = logprobs.topk(top, dim=-1)
    return logprobs.gather(-1, tokens[..., None])[..., 0], logits.argmax(-1) == tokens, best.indices, best.values


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Requests whose prompts are being read."""

    admission: Admission
    prompts: Prefill
    scorer: PromptScorer | None  # where a request asks for prompt_logprobs

    @property
    def done(self) -> bool:
        """Whether the prompts are read."""
        return self.prompts.done

    def prompt_scores(self, index: int) -> PassageScore | None:
        """Log-probabilities of the prompt of request ``index``, where it asks for them; a transfer to the host."""
        request = self.admission.requests[index]
        if self.scorer is None or request.prompt_logprobs is None:
            return None
        return self.scorer.scores(index, len(request.tokens), request.prompt_logprobs)
