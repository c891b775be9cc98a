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
from paceline.api.prompts import EncodedPrompt
from paceline.api.results import Result
from paceline.api.values import token_lists
from paceline.core.context import Context
from paceline.core.logprobs import TokenLogprobs
from paceline.core.request import MAX_STOP_TOKENS
from paceline.hf.criteria import Criteria, StoppingState
from paceline.hf.inputs import Inputs, first_eos, ngrams_in_padding
from paceline.hf.processors import Processors


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """N rows to decode: B prompts, each repeated for its sequences."""

    padded: Tensor  # int64 [N, T] on the host
    prompts: list[EncodedPrompt]  # N, without padding, and what an encoder reads
    params: list[SamplingParams]  # of every row
    max_tokens: int
    stopping: StoppingState
    processors: Processors
    pad: int | None
    last: int | None  # forced_eos_token_id

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt or negative prompt."""
        prompts = (len(prompt.tokens) for prompt in self.prompts)
        return max(*prompts, *(len(params.negative_prompt or ()) for params in self.params))

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
        rows = [[*result.token_ids[:length], *self.forced(result)] for result in results]
        new = torch.full((len(rows), max(map(len, rows))), self.pad or 0)
        for row, tokens in enumerate(rows):
            new[row, : len(tokens)] = torch.tensor(tokens)
        return torch.cat((self.padded, new), dim=1), [(result.logprobs or ())[:length] for result in results]

    def forced(self, result: Result) -> tuple[int, ...]:
        """What follows a result that reached its last token."""
        whole = result.finish_reason == "length" and len(result.token_ids) == self.max_tokens
        return () if self.last is None or not whole else (self.last,)


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
    contexts: Sequence[Context] | None = None,
) -> Job:
    """The rows to decode; ``contexts`` are of the prompts, None without an encoder.

    Raises ValueError for lengths that do not fit.
    """
    context = target.lm.max_positions
    deadline = criteria.deadline
    if deadline is None and settings.max_time is not None:
        deadline = time.time() + settings.max_time
    params = _resolve_params(settings, criteria, prompts.padded.shape[1], context=context)
    processing(target, params)  # refuses ids outside the vocabulary
    prompts, params = _force(prompts, params, settings, vocab_size=target.lm.vocab_size)
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
        prompts=[
            EncodedPrompt(list(row), None if contexts is None else contexts[index])
            for index, row in enumerate(prompts.rows)
            for _ in range(count)
        ],
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
        last=settings.forced_eos,
    )


def _force(
    prompts: Inputs, params: SamplingParams, settings: GenerationOptions, *, vocab_size: int
) -> tuple[Inputs, SamplingParams]:
    """Prompts with the token that is forced after them, and parameters of what is not forced."""
    first = settings.forced_bos if prompts.padded.shape[1] == 1 else None
    forced = {"forced_bos_token_id": first, "forced_eos_token_id": settings.forced_eos}
    for name, token in forced.items():
        if token is not None and not 0 <= token < vocab_size:
            raise ValueError(f"{name}={token}: the model has {vocab_size} tokens; give one of them")
    found = [name for name, token in forced.items() if token is not None]
    if not found:
        return prompts, params
    if settings.output_scores or settings.output_logits:
        raise ValueError(f"{found[0]} with output_scores or output_logits: leave one of them out")
    left = (params.max_tokens or 1) - len(found)
    if left < 1:
        raise ValueError(f"max_new_tokens={params.max_tokens} with {' and '.join(found)}: give at least one more")
    params = replace(params, max_tokens=left, min_tokens=min(left, max(0, params.min_tokens - (first is not None))))
    if first is None:
        return prompts, params
    padded = torch.cat((prompts.padded, torch.full((len(prompts.padded), 1), first)), dim=1)
    return Inputs(padded=padded, rows=tuple((*row, first) for row in prompts.rows)), params


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
