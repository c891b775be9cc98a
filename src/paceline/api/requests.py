"""Turns prompts and parameters into a request and a completion per sample: encoded, validated and resolved once."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias, TypedDict, Unpack

from paceline.api.completion import Completion, Criterion
from paceline.api.draft_choice import chosen_origins
from paceline.api.grammars import closing, constraints_of
from paceline.api.loading import Loaded
from paceline.api.params import SamplingParams
from paceline.api.processors import processing
from paceline.api.prompts import EncodedPrompt, Prompts, encode, read_prompt, split, token_context
from paceline.api.values import count
from paceline.core.constraint import Constraint
from paceline.core.context import Context, describe
from paceline.core.guidance import Guidance
from paceline.core.noise import split_seed
from paceline.core.request import Request
from paceline.decode import Decoder
from paceline.models.native.encoder_decoder import TOKENS

ParamsLike: TypeAlias = SamplingParams | Sequence[SamplingParams] | None
Prepared: TypeAlias = tuple[Request, Completion]


class RequestOptions(TypedDict, total=False):
    """What ``Engine.submit`` is told of its prompts beside their parameters."""

    rejected: bool
    steps: bool
    num_draft_tokens: int | None
    drafter: str | None
    keep_scores: bool
    draft_store: str


def prepare(
    target: Loaded,
    decoder: Decoder,
    prompts: Prompts | Sequence[EncodedPrompt],
    params: ParamsLike,
    criterion: Criterion | None,
    constraints: Sequence[Constraint] = (),
    **more: Unpack[RequestOptions],
) -> list[Prepared]:
    """The request of every sample of every prompt, and its completion; ``Engine.submit`` documents how seeds are split.

    ``constraints`` are applied after those of the parameters; ``more`` is as in ``Engine.submit``. Raises ValueError
    for what the decoder cannot run.
    """
    rejected, steps = more.get("rejected", False), more.get("steps", False)
    most, allowed = decoder.plan.max_draft_tokens, more.get("num_draft_tokens")
    count(0, f"0 (no drafting) to {most}, which the engine drafts at most, or None", most=most, optional=True)(
        "num_draft_tokens", allowed
    )
    origins = chosen_origins(more.get("drafter"), decoder.drafter, decoder.plan)
    encoded = [read_prompt(target, prompt, name=f"prompt {index}") for index, prompt in enumerate(split(prompts))]
    shared = params is None or isinstance(params, SamplingParams)
    options = per_prompt(params, len(encoded))
    fresh, num_samples = secrets.randbits(63), 0
    prepared: list[Prepared] = []
    for index, (prompt, option) in enumerate(zip(encoded, options, strict=True)):
        base = fresh if option.seed is None else option.seed
        # A fresh seed is split per prompt even where each prompt has parameters of its own.
        first = num_samples if shared or option.seed is None else 0
        num_samples += option.n
        for sample in range(option.n):
            seed = split_seed(base, first + sample)
            try:
                request = _request(target, decoder, prompt, option, seed, constraints, sample=sample)
                request = replace(
                    request,
                    drafts=rejected or steps,
                    num_draft_tokens=allowed,
                    drafters=origins,
                    keep_scores=more.get("keep_scores", False),
                    draft_store=more.get("draft_store", ""),
                )
            except ValueError as error:
                raise ValueError(f"prompt {index}: {error}") from error
            completion = Completion(
                index=index,
                sample=sample,
                sequence=list(prompt.tokens),
                params=option,
                seed=seed,
                tokenizer=target.tokenizer,
                origins=decoder.drafter.origins,
                criterion=closing(target, option, criterion),
                rejected=rejected,
                steps=steps,
            )
            prepared.append((request, completion))
    return prepared


def per_prompt(params: ParamsLike, count: int) -> list[SamplingParams]:
    """Parameters for each of ``count`` prompts. Raises ValueError for a list of another length or of other types."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if not isinstance(params, Sequence) or not all(isinstance(entry, SamplingParams) for entry in params):
        raise ValueError(f"params={params!r}: give SamplingParams(...), one for all prompts or one for each")
    if len(params) != count:
        raise ValueError(f"{len(params)} params for {count} prompts: give one for all, or one for each")
    return list(params)


def guidance(target: Loaded, tokens: Sequence[int], params: SamplingParams) -> Guidance | None:
    """Classifier-free guidance for the prompt ``tokens``, the decoder's where there is an encoder: that reads the
    negative prompt then. Raises ValueError for a bad negative prompt, and for an encoder that needs one.
    """
    if params.guidance_scale == 1:
        return None
    given = params.negative_prompt
    if target.lm.context_inputs:
        negative = _negative_source(target, params)
        return Guidance(scale=params.guidance_scale, prompt=tuple(tokens), context=negative)
    prompt = tokens[-1:] if given is None else encode(target, given, name="negative_prompt")
    return Guidance(scale=params.guidance_scale, prompt=tuple(prompt))


def _negative_source(target: Loaded, params: SamplingParams) -> Context:
    """What the encoder reads in the place of the source: the negative prompt, or nothing."""
    scale, reads = params.guidance_scale, target.lm.context_inputs
    if TOKENS not in reads:
        raise ValueError(
            f"guidance_scale={scale}: {target.name} reads {describe(reads)}, and a negative prompt is of tokens: give 1"
        )
    if params.negative_prompt is None and min(reads[TOKENS].min_shape) > 0:
        raise ValueError(
            f"guidance_scale={scale}: the encoder of {target.name} needs a source to be led away from: give it as "
            "negative_prompt, a text or token ids"
        )
    return token_context(target, params.negative_prompt or [], name="negative_prompt")


def _request(
    target: Loaded,
    decoder: Decoder,
    prompt: EncodedPrompt,
    params: SamplingParams,
    seed: int,
    constraints: Sequence[Constraint],
    *,
    sample: int,
) -> Request:
    if params.stop_strings and target.tokenizer is None:
        raise ValueError(
            f"stop={list(params.stop_strings)}: {target.name} has no tokenizer to find it with; give stop_token_ids"
        )
    tokens, context = prompt.tokens, prompt.context
    guided = guidance(target, tokens, params)
    longest = max(len(tokens), 0 if guided is None else len(guided.prompt))
    limit = decoder.batch.max_length
    request = Request(
        tokens=tokens,
        max_tokens=max(1, limit - longest) if params.max_tokens is None else params.max_tokens,
        sampling=params.sampling(seed),
        processing=processing(target, params),
        guidance=guided,
        context=context,
        constraints=(*constraints_of(target, params), *constraints),
        stop_tokens=tuple(dict.fromkeys((*params.stop_tokens, *(() if params.ignore_eos else target.eos)))),
        min_tokens=params.min_tokens,
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs if sample == 0 else None,  # once per prompt
    )
    decoder.check(request)
    return request
