"""Prepares a call of the drop-in: its prompts, sampling parameters, stopping criteria and logits processors, by row.

B prompts, N rows (one for each returned sequence), T tokens of a padded prompt.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from paceline.api.generation_config import GenerationOptions
from paceline.api.generation_fields import Values
from paceline.api.loading import Loaded
from paceline.api.params import SamplingParams
from paceline.api.processors import processing
from paceline.api.results import Result
from paceline.api.values import token_lists
from paceline.core.logprobs import TokenLogprobs
from paceline.core.request import MAX_STOP_TOKENS
from paceline.hf.criteria import Criteria, StoppingState
from paceline.hf.inputs import Inputs, first_eos, ngrams_in_padding
from paceline.hf.processors import Processors


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """N rows to decode: B prompts, each repeated for its sequences."""

    padded: Tensor  # int64 [N, T] on the host
    prompts: list[list[int]]  # N, without padding
    params: list[SamplingParams]  # of every row
    max_tokens: int
    stopping: StoppingState
    processors: Processors
    pad: int | None

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt or negative prompt."""
        return max(*map(len, self.prompts), *(len(params.negative_prompt or ()) for params in self.params))

    @property
    def failure(self) -> Exception | None:
        """The exception that a criterion or a processor raised."""
        return self.stopping.failure or self.processors.failure

    def joined(self, results: Sequence[Result]) -> tuple[Tensor, list[Sequence[TokenLogprobs]]]:
        """Prompts and outputs [N, T + new], padded on the right, and what is known of every new token of each row.

        Without a token to pad with, rows that ended at the deadline are cut to the shortest.
        """
        length = self.stopping.common_length
        if self.stopping.expired and self.pad is None:
            length = min(len(result.token_ids) for result in results)
        rows = [result.token_ids[:length] for result in results]
        new = torch.full((len(rows), max(map(len, rows))), self.pad or 0)
        for row, tokens in enumerate(rows):
            new[row, : len(tokens)] = torch.tensor(tokens)
        return torch.cat((self.padded, new), dim=1), [(result.logprobs or ())[:length] for result in results]


def by_step(rows: Sequence[Sequence[Tensor | None]]) -> tuple[Tensor]:
    """[N, V] for every new token, from a [V] for each token of N rows; zeros where a row has ended."""
    whole = [torch.stack([one for one in row if one is not None]) for row in rows]  # [t, V] for each row
    return cast("tuple[Tensor]", torch.nn.utils.rnn.pad_sequence(whole).unbind())


def prepare(
    prompts: Inputs,
    negatives: Sequence[tuple[int, ...]] | None,
    settings: GenerationOptions,
    criteria: Criteria,
    processors: Processors,
    values: Values,
    target: Loaded,
) -> Job:
    """The rows to decode. Raises ValueError for lengths that do not fit."""
    context = target.lm.max_positions
    deadline = criteria.deadline
    if deadline is None and settings.max_time is not None:
        deadline = time.time() + settings.max_time
    params = _resolve_params(settings, criteria, prompts.padded.shape[1], context=context)
    processing(target, params)  # refuses ids outside the vocabulary
    max_tokens = params.max_tokens or 1
    for row, tokens in [*enumerate(prompts.rows), *enumerate(negatives or ())]:
        if len(tokens) + max_tokens > context:
            raise ValueError(
                f"row {row}: {len(tokens)} tokens and {max_tokens} new ones exceed the model's context of {context}: "
                "lower max_new_tokens or shorten the prompt"
            )
    pads = criteria.pads or values.get("eos_token_id") is not None
    pad = first_eos(values) if settings.pad is None else settings.pad
    if pads and pad is None:
        raise ValueError("nothing to fill up rows that end early: give pad_token_id")
    count = settings.num_return_sequences
    padded = prompts.padded.repeat_interleave(count, dim=0)
    row_params = [
        _ban_padded_ngrams(params, given, row, target) for given, row in zip(prompts.padded, prompts.rows, strict=True)
    ]
    processors.check(len(padded))
    if negatives is not None:
        row_params = [
            replace(params, negative_prompt=given) for params, given in zip(row_params, negatives, strict=True)
        ]
    return Job(
        padded=padded,
        prompts=[list(row) for row in prompts.rows for _ in range(count)],
        params=[params for params in row_params for _ in range(count)],
        max_tokens=max_tokens,
        stopping=StoppingState(
            callables=criteria.callables,
            padded=padded,
            max_tokens=max_tokens,
            pads=pads,
            deadline=deadline,
            device=target.lm.device,
        ),
        processors=processors,
        pad=pad,
    )


def _ban_padded_ngrams(params: SamplingParams, padded: Tensor, tokens: Sequence[int], target: Loaded) -> SamplingParams:
    """``params`` of one row that also ban n-grams which begin in its padding, as transformers does."""
    ngrams = ngrams_in_padding(padded, len(tokens), params.no_repeat_ngram_size, target.lm.vocab_size)
    if not ngrams:
        return params
    return replace(params, bad_words_ids=(*token_lists("bad_words_ids", params.bad_words_ids), *ngrams))


def _resolve_params(
    settings: GenerationOptions, criteria: Criteria, num_prompt_tokens: int, *, context: int
) -> SamplingParams:
    """The parameters of every row. As in transformers, padding counts as part of the prompt."""
    params = settings.for_prompt(num_prompt_tokens, context=context)
    eos, max_tokens = settings.eos or (), params.max_tokens
    if criteria.max_length is not None:
        max_tokens = max(1, criteria.max_length - num_prompt_tokens)
    if criteria.eos is not None:
        if params.min_tokens and set(criteria.eos) != set(eos):
            raise ValueError(
                f"stopping_criteria end at {list(criteria.eos)}, and min_new_tokens and min_length only ban "
                f"{list(eos)}: give the same eos_token_id"
            )
        eos = criteria.eos
    if len(eos) > MAX_STOP_TOKENS:
        raise ValueError(
            f"{len(eos)} end-of-text tokens: at most {MAX_STOP_TOKENS} are supported; give fewer in eos_token_id"
        )
    return replace(
        params,
        n=1,
        max_tokens=max_tokens,
        stop=None,
        stop_token_ids=eos,
        ignore_eos=True,
        detokenize=False,
        logprobs=0 if settings.output_scores or settings.output_logits else None,
    )
