"""Every field of transformers' ``GenerationConfig`` in one of three tables: supported, without effect, or refused."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

DEFAULT_MAX_NEW_TOKENS = 20  # of transformers, if neither max_new_tokens nor max_length is given
DEFAULT_TOP_K = 50  # of transformers, for sampling if top_k is not given

Values: TypeAlias = Mapping[str, Any]  # of a configuration, by field


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A field that is refused unless it is None, one of the ``neutral`` values, or not ``read`` by transformers."""

    reason: str
    neutral: tuple[object, ...] = ()
    read: Callable[[Values], bool] = lambda values: True


def _samples(values: Values) -> bool:
    return values.get("do_sample") is True


def _returns_dict(values: Values) -> bool:
    return values.get("return_dict_in_generate") is True


HONOURED: dict[str, str] = {
    "do_sample": "None and False: temperature 0; True: the distribution of temperature and the filters",
    "temperature": "read where do_sample is True; None: 1.0",
    "top_k": f"read where do_sample is True; None: {DEFAULT_TOP_K}; 0: off",
    "top_p": "read where do_sample is True; None: 1.0",
    "min_p": "read where do_sample is True; None: off",
    "typical_p": "read where do_sample is True; None and 1: off",
    "epsilon_cutoff": "read where do_sample is True; None, 0 and 1: off",
    "eta_cutoff": "read where do_sample is True; None, 0 and 1: off",
    "repetition_penalty": "counts prompt and output, without padding",
    "no_repeat_ngram_size": "counts prompt and output",
    "sequence_bias": "added to the logit of a sequence's last token",
    "bad_words_ids": "never completed, except single end-of-text tokens",
    "suppress_tokens": "never chosen",
    "begin_suppress_tokens": "not the first token",
    "guidance_scale": "with negative_prompt_ids, or the prompt's last token; None and 1: off",
    "max_new_tokens": "max_tokens",
    "max_length": "prompt and new tokens together, unless max_new_tokens is given",
    "min_new_tokens": "min_tokens",
    "min_length": "prompt and new tokens together, unless min_new_tokens is given",
    "stop_strings": "stop",
    "eos_token_id": "stop_token_ids, in place of the model's own end-of-text tokens",
    "pad_token_id": "fills shorter rows",
    "bos_token_id": "the prompt if none is given",
    "decoder_start_token_id": "the first token of an encoder-decoder's output; None: bos_token_id",
    "forced_bos_token_id": "follows a prompt of one token",
    "forced_eos_token_id": "the last token of an output that does not end before it",
    "num_return_sequences": "n",
    "return_dict_in_generate": "the type of the result",
    "output_scores": "with return_dict_in_generate: after processors, temperature and filters",
    "output_logits": "with return_dict_in_generate: as the model gives them",
    "max_time": "seconds, after which rows end at their next token",
    "num_assistant_tokens": "the draft length of a draft model",
    "prompt_lookup_num_tokens": "the draft length of prompt lookup",
    "max_matching_ngram_size": "the longest match of prompt lookup",
}

_BEAMS = "only read by beam search, which num_beams refuses"
_SPEED = "changes how much is drafted, never the output"
_CACHE = "changes the layout of the cache, never the output"
_COMPILES = "changes how the forward is compiled, never the output"

HARMLESS: dict[str, str] = {
    "early_stopping": _BEAMS,
    "length_penalty": _BEAMS,
    "low_memory": _BEAMS,
    "num_assistant_tokens_schedule": _SPEED,
    "assistant_confidence_threshold": _SPEED,
    "assistant_lookbehind": "how far texts are encoded again is chosen here",
    "target_lookbehind": "how far texts are encoded again is chosen here",
    "use_cache": _CACHE,
    "cache_config": _CACHE,
    "max_cache_len": _CACHE,
    "return_legacy_cache": _CACHE,
    "prefill_chunk_size": "changes how a prompt is prefilled, never the output",
    "compile_config": _COMPILES,
    "disable_compile": _COMPILES,
    "continuous_batching_config": "changes how requests are scheduled, never the output",
    "renormalize_logits": "adds the same number to all logits",
    "transformers_version": "metadata",
    "_from_model_config": "metadata",
    "_commit_hash": "metadata",
}

_SEARCH = "there is no search"
_UNBUILT = "not implemented"
_DRAFTER = "assistant_model is the drafter"
_NOT_KEPT = "not stored"

REFUSED: dict[str, Refusal] = {
    "num_beams": Refusal(reason=_SEARCH, neutral=(1,)),
    "num_beam_groups": Refusal(reason=_SEARCH, neutral=(1,)),
    "diversity_penalty": Refusal(reason=_SEARCH, neutral=(0,)),
    "penalty_alpha": Refusal(reason=_SEARCH, neutral=(0,)),
    "constraints": Refusal(reason=_SEARCH),
    "force_words_ids": Refusal(reason=_SEARCH),
    "dola_layers": Refusal(reason="uses logits of early layers"),
    "encoder_repetition_penalty": Refusal(reason=_UNBUILT, neutral=(1,)),
    "encoder_no_repeat_ngram_size": Refusal(reason=_UNBUILT, neutral=(0,)),
    "exponential_decay_length_penalty": Refusal(reason=_UNBUILT),
    "top_h": Refusal(reason=_UNBUILT, read=_samples),
    "watermarking_config": Refusal(reason=_UNBUILT),
    "remove_invalid_values": Refusal(reason="NaN logits are a model error", neutral=(False,)),
    "token_healing": Refusal(reason="prompts are not rewritten", neutral=(False,)),
    "cache_implementation": Refusal(
        reason="others change the output",
        neutral=(
            "dynamic",
            "offloaded",
            "static",
            "offloaded_static",
            "sliding_window",
            "hybrid",
            "hybrid_chunked",
            "offloaded_hybrid",
            "offloaded_hybrid_chunked",
        ),
    ),
    "is_assistant": Refusal(reason=_DRAFTER, neutral=(False,)),
    "assistant_early_exit": Refusal(reason=_DRAFTER),
    "assistant_ensemble_weight": Refusal(reason="it changes the distribution"),
    "use_mtp": Refusal(reason=_DRAFTER, neutral=(False,)),
    "speculation_type": Refusal(reason=_DRAFTER),
    "output_attentions": Refusal(reason=_NOT_KEPT, neutral=(False,), read=_returns_dict),
    "output_hidden_states": Refusal(reason=_NOT_KEPT, neutral=(False,), read=_returns_dict),
}


def is_known(name: str) -> bool:
    """Whether ``GenerationConfig`` has a field of this name."""
    return name in HONOURED or name in HARMLESS or name in REFUSED


def refusals(values: Values) -> list[str]:
    """The fields that would change the output and are not supported."""
    return [
        name
        for name, refusal in REFUSED.items()
        if values.get(name) is not None and values[name] not in refusal.neutral and refusal.read(values)
    ]


def check(values: Values) -> None:
    """Raise ValueError for all fields that are unknown or not supported."""
    unknown = [str(name) for name in values if not is_known(name)]
    refused = [f"{name}={values[name]!r}" for name in refusals(values)]
    problems = [f"cannot honour: {', '.join(refused)}"] * bool(refused)
    problems += [f"unknown fields: {', '.join(unknown)}"] * bool(unknown)
    if problems:
        raise ValueError(f"generation configuration: {'; '.join(problems)}; leave them out")
