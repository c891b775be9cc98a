"""Log-probabilities of chosen tokens, under the target's raw distribution and under the one that was sampled from.

R rows, r rows that keep whole distributions, D draft depth, V vocabulary, n likeliest tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from paceline.core.host import numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """One token's log-probabilities, natural logarithms.

    ``raw`` is under the softmax of the target's logits; ``processed`` under the distribution after processors,
    temperature and filters, which is one-hot in a greedy row. The likeliest tokens are sorted, best first.

    Where a request keeps them, ``logits`` and ``scores`` are the whole vocabulary's, before and after processors,
    temperature and filters; greedy rows have no temperature and no filters.
    """

    raw: float
    processed: float
    top_raw: tuple[tuple[int, float], ...] = ()
    top_processed: tuple[tuple[int, float], ...] = ()
    logits: Tensor | None = field(default=None, compare=False, repr=False)  # [V] float32
    scores: Tensor | None = field(default=None, compare=False, repr=False)  # [V] float32


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptScores:
    """Logits and scores of one step, on the device, of the rows that keep them."""

    rows: tuple[int, ...]  # r
    logits: Tensor  # [r, D + 1, V] float32
    scores: Tensor  # [r, D + 1, V] float32

    def added_to(self, found: list[list[TokenLogprobs]]) -> list[list[TokenLogprobs]]:
        """The log-probabilities of every row's tokens with these."""
        for row, logits, scores in zip(self.rows, self.logits, self.scores, strict=True):
            own = found[row]
            # Copies, because a view would hold the memory of all nodes.
            whole = zip(own, logits[: len(own)].clone(), scores[: len(own)].clone(), strict=True)
            found[row] = [replace(one, logits=before, scores=after) for one, before, after in whole]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLogprobs:
    """Log-probabilities of one step, on the device."""

    raw: Tensor  # [R, D + 1]
    processed: Tensor  # [R, D + 1]
    raw_tokens: Tensor  # [R, D + 1, n]
    raw_top: Tensor  # [R, D + 1, n]
    processed_tokens: Tensor  # [R, D + 1, n]
    processed_top: Tensor  # [R, D + 1, n]
    kept: KeptScores | None = None

    def read(self, asked: Sequence[int | None], num: Sequence[int]) -> list[list[TokenLogprobs]]:
        """The first ``num`` tokens of every row that asked, each with as many likeliest tokens as it asked for."""
        raw, processed = numbers(self.raw), numbers(self.processed)
        tops = [numbers(part) for part in (self.raw_tokens, self.raw_top, self.processed_tokens, self.processed_top)]
        depth, width = self.raw.shape[1], self.raw_top.shape[2]

        def best(tokens: list[float], values: list[float], at: int, count: int) -> tuple[tuple[int, float], ...]:
            chosen = slice(at * width, at * width + min(count, width))  # the vocabulary may hold fewer than were asked
            pairs = zip(tokens[chosen], values[chosen], strict=True)
            return tuple((int(token), value) for token, value in pairs if value > -float("inf"))

        found = [
            []
            if count is None
            else [
                TokenLogprobs(
                    raw=raw[at],
                    processed=processed[at],
                    top_raw=best(tops[0], tops[1], at, count),
                    top_processed=best(tops[2], tops[3], at, count),
                )
                for at in range(row * depth, row * depth + num[row])
            ]
            for row, count in enumerate(asked)
        ]
        return found if self.kept is None else self.kept.added_to(found)


def gather_logprobs(logits: Tensor, scores: Tensor, tokens: Tensor, num_top: int) -> StepLogprobs:
    """Log-probabilities of ``tokens`` [R, D + 1] under ``logits`` and processed ``scores``, both [R, D + 1, V]."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    raw, processed = logits.to(wide).log_softmax(-1), scores.to(wide).log_softmax(-1)
    count = min(num_top, logits.shape[-1])
    raw_top, processed_top = raw.topk(count, dim=-1), processed.topk(count, dim=-1)
    return StepLogprobs(
        raw=raw.gather(-1, tokens[..., None])[..., 0],
        processed=processed.gather(-1, tokens[..., None])[..., 0],
        raw_tokens=raw_top.indices,
        raw_top=raw_top.values,
        processed_tokens=processed_top.indices,
        processed_top=processed_top.values,
    )
