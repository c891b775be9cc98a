"""Log-probabilities of chosen tokens, under the target's raw distribution and under the one that was sampled from.

R rows, D draft depth, V vocabulary, n likeliest tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.core.host import numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """One token's log-probabilities, natural logarithms.

    ``raw`` is under the softmax of the target's logits; ``processed`` under the distribution after processors,
    temperature and filters, which is one-hot in a greedy row. The likeliest tokens are sorted, best first."""

    raw: float
    processed: float
    top_raw: tuple[tuple[int, float], ...] = ()
    top_processed: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLogprobs:
    """Log-probabilities of one step, on the device."""

    raw: Tensor  # [R, D + 1]
    processed: Tensor  # [R, D + 1]
    raw_tokens: Tensor  # [R, D + 1, n]
    raw_top: Tensor  # [R, D + 1, n]
    processed_tokens: Tensor  # [R, D + 1, n]
    processed_top: Tensor  # [R, D + 1, n]

    def read(self, asked: Sequence[int | None], num: Sequence[int]) -> list[list[TokenLogprobs]]:
        """The first ``num`` tokens of every row that asked, each with as many likeliest tokens as it asked for."""
        raw, processed = numbers(self.raw), numbers(self.processed)
        tops = [numbers(part) for part in (self.raw_tokens, self.raw_top, self.processed_tokens, self.processed_top)]
        depth, width = self.raw.shape[1], self.raw_top.shape[2]

        def best(tokens: list[float], values: list[float], at: int, count: int) -> tuple[tuple[int, float], ...]:
            chosen = slice(at * width, at * width + min(count, width))  # the vocabulary may hold fewer than were asked
            pairs = zip(tokens[chosen], values[chosen], strict=True)
            return tuple((int(token), value) for token, value in pairs if value > -float("inf"))

        return [
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
