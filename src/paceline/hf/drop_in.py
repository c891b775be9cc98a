"""``generate``, a drop-in for transformers' ``model.generate`` with speculative decoding.

It takes the same arguments and returns the same token ids, for batches too; unsupported arguments raise an error.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput

from paceline.api.build import check_options
from paceline.api.draft_length import NumDraftTokens
from paceline.api.drafter_like import DrafterLike, VerifierLike
from paceline.api.engine import Engine
from paceline.api.engine_for import engine_for
from paceline.api.generation_config import GenerationOptions, generation_options
from paceline.api.generation_fields import Values
from paceline.api.loading import Loaded, placement
from paceline.api.results import Result
from paceline.api.targets import load_cached
from paceline.core.noise import split_seed
from paceline.drafters import DRAFTERS
from paceline.drafters.base import Drafter
from paceline.engine.outputs import RequestStats
from paceline.hf.criteria import StoppingCriterion, read_criteria
from paceline.hf.inputs import merge, read_inputs, read_negatives
from paceline.hf.job import Job, by_step, prepare
from paceline.hf.prepared import is_prepared, read_prepared
from paceline.hf.processors import Processors
from paceline.hf.sources import read_sources, refuse_with_sources, take
from paceline.models.from_transformers import TransformersModel, is_transformers_model
from paceline.text.tokenizer import Tokenizer

DEFAULT_MATCHING_NGRAM_SIZE = 2  # of transformers


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):
    """``sequences`` [N, T + new] of N = B * num_return_sequences rows, and the statistics of each.

    With ``output_scores`` and ``output_logits``, ``scores`` and ``logits`` hold [N, V] float32 for every new token,
    with zeros where a row has ended. The other fields are None.
    """

    statistics: tuple[RequestStats, ...] | None = None


def generate(
    model: TransformersModel,
    input_ids: Tensor | Sequence[Sequence[int]] | Sequence[int] | None = None,
    *,
    inputs: Tensor | Sequence[Sequence[int]] | Sequence[int] | None = None,
    negative_prompt_ids: Tensor | Sequence[Sequence[int]] | Sequence[int] | None = None,
    negative_prompt_attention_mask: Tensor | Sequence[Sequence[int]] | Sequence[int] | None = None,
    assistant_model: TransformersModel | Loaded | str | Path | Drafter | None = None,
    prompt_lookup_num_tokens: int | None = None,
    generation_config: GenerationConfig | None = None,
    logits_processor: Iterable[object] | None = None,
    prefix_allowed_tokens_fn: Callable[[int, Tensor], list[int]] | None = None,
    stopping_criteria: Sequence[StoppingCriterion] | None = None,
    streamer: BaseStreamer | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    assistant_tokenizer: PreTrainedTokenizerBase | None = None,
    verifier: VerifierLike = "coupled",
    batch_size: int | None = None,
    **options: object,
) -> Tensor | SpeculativeOutput:
    """What ``model.generate(input_ids, ...)`` gives: int64 [B * num_return_sequences, T + new], on the model's device.

    The padded prompts come first in it; rows that stop early are filled up with the padding token. Greedy tokens
    equal those of transformers. Sampled tokens have the same distribution, with a seed from torch's global generator.

    - ``model``: a loaded causal LM or encoder-decoder, used without a second copy of its weights.
    - ``input_ids`` or ``inputs``: [B, T], padded on the left where the option ``attention_mask`` is 0; None: the
      model's beginning-of-text token. Without a mask padding is inferred as transformers does.
    - of an encoder-decoder: what the encoder reads, padded on the right, or ``encoder_outputs`` in its place;
      ``decoder_input_ids`` [B, t] begin the output (None: ``decoder_start_token_id``), and come first in what is
      returned. Without a mask it reads every token.
    - ``negative_prompt_ids``: [B, t], negative prompts for ``guidance_scale``; None: the prompts' last tokens.
    - ``assistant_model``: the drafter: a model, its directory, or a Drafter. ``num_assistant_tokens`` ("auto") is
      the draft length. Or ``prompt_lookup_num_tokens``: n-gram lookup in the tokens so far. With neither, decoding is
      plain.
    - ``generation_config``, ``**options``: the fields of ``GenerationConfig``; options come first, then the argument's
      fields, then those of ``model.generation_config``.
    - ``logits_processor``, ``prefix_allowed_tokens_fn``: called for each row separately at every node of its
      draft, with that node's padded ids [1, t]. Their exceptions are raised here.
    - ``stopping_criteria``: called for each row separately after each of its tokens, with padded ids [1, t] and
      scores None. Their exceptions are raised here.
    - ``streamer``: gets the prompt, then every token as it is committed; for one row.
    - ``tokenizer``: of transformers; needed for ``stop_strings``, and with ``assistant_tokenizer``.
    - ``assistant_tokenizer``: of an ``assistant_model`` with another vocabulary.
    - ``return_dict_in_generate`` among the options: a ``SpeculativeOutput`` instead, with the statistics of every row.
    - ``verifier`` ("coupled"), ``batch_size`` (None: what fits, at most 16 rows at once): as in ``paceline.generate``.

    ``model.generate(..., custom_generate=paceline.hf.generate)`` runs it too; there, ``assistant_model``,
    ``tokenizer``, ``streamer`` and ``stop_strings`` come by ``functools.partial``, since transformers keeps them.

    Raises ValueError, before any work, for arguments that change the output of transformers and are not supported.
    """
    # No parameter of this name: transformers does not prepare what a custom_generate function names.
    attention_mask = options.pop("attention_mask", None)
    if inputs is not None and input_ids is not None:
        raise ValueError("inputs and input_ids are the same argument: give one of them")
    own, given = _fields(checked(model).generation_config), _fields(generation_config)
    encodes = bool(model.config.is_encoder_decoder)
    of_source = take(options) if encodes else {}
    if encodes:
        refuse_with_sources(
            custom_generate=is_prepared(generation_config),
            negative_prompt_ids=negative_prompt_ids is not None,
            negative_prompt_attention_mask=negative_prompt_attention_mask is not None,
        )
    if is_prepared(generation_config) and isinstance(input_ids, Tensor):
        prepared = read_prepared(model, input_ids, attention_mask, generation_config, logits_processor, options)
        own, given, options = {}, prepared.values, prepared.options
        attention_mask, logits_processor = prepared.attention_mask, prepared.processors
        prefix_allowed_tokens_fn = prefix_allowed_tokens_fn or prepared.allowed
        negative_prompt_ids, negative_prompt_attention_mask = prepared.negative_ids, prepared.negative_mask
    if prompt_lookup_num_tokens is not None:
        options["prompt_lookup_num_tokens"] = prompt_lookup_num_tokens
    values = merge(own, given, options)
    processors = Processors(logits_processor, prefix_allowed_tokens_fn, values=values)
    settings = generation_options(values)
    criteria = read_criteria(stopping_criteria, stop_strings=settings.params.stop_strings, tokenizer=tokenizer)
    check_tokenizers(tokenizer, assistant_tokenizer, assistant_model)
    drafter, num_draft_tokens = _choose_drafter(assistant_model, settings, assistant_tokenizer)
    check_options(drafter, verifier, num_draft_tokens, 1 if batch_size is None else batch_size)
    target = load_cached(model)
    if assistant_tokenizer is not None:
        target = with_tokenizer(target, tokenizer)
    ids, contexts = inputs if input_ids is None else input_ids, None
    if encodes:
        refuse_with_sources(guidance_scale=settings.params.guidance_scale != 1)
        sources = read_sources(ids, attention_mask, of_source, values=values, target=target)
        prompts, contexts = sources.prompts, sources.contexts
    else:
        prompts = read_inputs(ids, attention_mask, values=values, vocab_size=target.lm.vocab_size)
    negatives = read_negatives(
        negative_prompt_ids,
        negative_prompt_attention_mask,
        prompts=prompts,
        values=values,
        vocab_size=target.lm.vocab_size,
    )
    job = prepare(prompts, negatives, settings, criteria, processors, values, target, contexts)
    if streamer is not None and len(job.prompts) > 1:
        raise ValueError(f"streamer with {len(job.prompts)} rows: give one prompt and num_return_sequences=1")
    engine = engine_for(
        target,
        drafter=drafter,
        verifier=verifier,
        num_draft_tokens=num_draft_tokens,
        batch_size=batch_size,
        num_texts=len(job.prompts),
        max_length=job.longest + job.max_tokens,
        max_tokens=job.max_tokens,
        guidance=settings.params.guidance_scale != 1,
    )
    results = _run(engine, job, streamer)
    sequences, found = job.joined(results)
    sequences = cast(torch.LongTensor, sequences.to(target.lm.device))
    if not settings.return_dict:
        return sequences
    return SpeculativeOutput(
        sequences=sequences,
        statistics=tuple(result.stats for result in results),
        scores=by_step([[one.scores for one in row] for row in found]) if settings.output_scores else None,
        logits=by_step([[one.logits for one in row] for row in found]) if settings.output_logits else None,
    )


def _choose_drafter(
    assistant: TransformersModel | Loaded | str | Path | Drafter | None,
    settings: GenerationOptions,
    tokenizer: PreTrainedTokenizerBase | None,
) -> tuple[DrafterLike, NumDraftTokens]:
    """The drafter and the draft length."""
    num_lookup, count = settings.prompt_lookup_num_tokens, settings.num_assistant_tokens
    if num_lookup is not None:
        if assistant is not None:
            raise ValueError(
                f"assistant_model and prompt_lookup_num_tokens={num_lookup} would both draft: give one of them"
            )
        size = settings.max_matching_ngram_size or DEFAULT_MATCHING_NGRAM_SIZE
        return DRAFTERS.find("ngram")(max_ngram=size), num_lookup
    if is_transformers_model(assistant):
        own = assistant.generation_config
        count = count or (None if own is None else own.num_assistant_tokens)
        assistant = load_cached(assistant)
    if isinstance(assistant, Loaded) and tokenizer is not None:
        assistant = with_tokenizer(assistant, tokenizer)
    return assistant, count or "auto"


def check_tokenizers(tokenizer: object, assistant_tokenizer: object, assistant: object) -> None:
    """Raise ValueError for an ``assistant_tokenizer`` that cannot be honoured."""
    if assistant_tokenizer is None:
        return
    if not isinstance(assistant, Loaded) and not is_transformers_model(assistant):
        raise ValueError(
            "assistant_tokenizer needs an assistant_model that is loaded: the one of a directory is used as it is; "
            "leave it out"
        )
    for name, given in (("tokenizer", tokenizer), ("assistant_tokenizer", assistant_tokenizer)):
        if not isinstance(given, PreTrainedTokenizerBase):
            raise ValueError(
                f"{name} of type {type(given).__name__}: with assistant_tokenizer, give both as tokenizers of "
                "transformers"
            )


def with_tokenizer(loaded: Loaded, tokenizer: PreTrainedTokenizerBase | None) -> Loaded:
    """``loaded`` with the tokenizer that was given for it, as one object for each, so that it is read once."""
    assert tokenizer is not None
    if tokenizer not in _TOKENIZERS:
        _TOKENIZERS[tokenizer] = Tokenizer(inner=copy(tokenizer), name="tokenizer")
    return replace(loaded, tokenizer=_TOKENIZERS[tokenizer])


_TOKENIZERS: WeakKeyDictionary[PreTrainedTokenizerBase, Tokenizer] = WeakKeyDictionary()


def _run(engine: Engine, job: Job, streamer: BaseStreamer | None) -> list[Result]:
    """Decode every row. Raises what a criterion or a processor raised, and RuntimeError where a row failed."""
    seed = int(torch.randint(2**63 - 1, ())) if job.params[0].temperature > 0 else 0
    streams = [
        engine.submit(
            [prompt],
            replace(params, seed=split_seed(seed, row)),
            criterion=job.stopping.criterion(row),
            constraints=job.processors.constraints(row, job.padded[row].tolist()),
            name=f"row {row}",
            keep_scores=params.logprobs is not None,
        )  # one request per row, because criteria are per row
        for row, (prompt, params) in enumerate(zip(job.prompts, job.params, strict=True))
    ]
    if streamer is not None:
        streamer.put(job.padded)
        for piece in streams[0]:
            streamer.put(torch.tensor([piece.token]))
    for stream in streams:
        while not stream.done:
            engine.advance()
            if job.failure is not None:
                break
    if job.failure is not None:
        raise job.failure
    results = [stream.results()[0] for stream in streams]
    for row, result in enumerate(results):
        if result.error is not None:
            raise RuntimeError(f"row {row}: {result.error}")
    if streamer is not None:
        for token in job.forced(results[0]):
            streamer.put(torch.tensor([token]))
        streamer.end()
    return results


def checked(model: object) -> TransformersModel:
    """``model`` if its weights can be used. Raises ValueError otherwise."""
    if is_transformers_model(model):
        if model.config.is_encoder_decoder and model.main_input_name != "input_ids":
            raise ValueError(
                f"{type(model).__name__} reads {model.main_input_name}, and the drop-in serves models that read "
                "tokens: use paceline.transcribe, or paceline.generate"
            )
        placement(model)
        return model
    raise ValueError(
        f"a model of type {type(model).__name__}: give a loaded transformers model (adapters merged into it, for "
        "example by merge_and_unload()); paceline.generate takes what paceline.load gives"
    )


def _fields(config: object) -> Values:
    """The fields of a ``GenerationConfig``; none for None."""
    if config is None:
        return {}
    if not isinstance(config, GenerationConfig):
        raise ValueError(f"generation_config of type {type(config).__name__}: give a GenerationConfig")
    return config.to_dict()
