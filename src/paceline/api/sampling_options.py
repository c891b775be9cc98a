"""Sampling parameters as keywords of a call, beside a ``SamplingParams`` or in place of one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Any, TypedDict

from paceline.api.generation_fields import is_known
from paceline.api.params import SamplingParams
from paceline.api.requests import ParamsLike


class SamplingOptions(TypedDict, total=False):
    """The fields of ``SamplingParams`` as keywords."""

    n: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool
    max_tokens: int | None
    min_tokens: int
    logprobs: int | None
    prompt_logprobs: int | None
    detokenize: bool
    skip_special_tokens: bool
    include_stop_str_in_output: bool
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] | None
    allowed_token_ids: Sequence[int] | None
    bad_words: Sequence[str] | None
    structured_outputs: object | None
    logits_processors: Sequence[object] | None
    truncate_prompt_tokens: int | None
    spaces_between_special_tokens: bool
    typical_p: float
    epsilon_cutoff: float
    eta_cutoff: float
    no_repeat_ngram_size: int
    suppress_tokens: Sequence[int] | None
    begin_suppress_tokens: Sequence[int] | None
    bad_words_ids: Sequence[Sequence[int]] | None
    sequence_bias: Mapping[tuple[int, ...], float] | Sequence[tuple[Sequence[int], float]] | None
    filter_order: str
    guidance_scale: float
    negative_prompt: str | Sequence[int] | None


# Names that other libraries have for these, and what to give here.
ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(
        ("max_new_tokens", "max_completion_tokens", "max_gen_len", "num_predict", "n_predict"), "max_tokens"
    ),
    **dict.fromkeys(("stop_strings", "stop_sequences", "stop_sequence"), "stop"),
    **dict.fromkeys(("assistant_model", "draft_model", "speculative_model", "speculative_config"), "drafter"),
    **dict.fromkeys(("num_assistant_tokens", "num_speculative_tokens"), "num_draft_tokens"),
    "min_new_tokens": "min_tokens",
    "num_return_sequences": "n",
    "eos_token_id": "stop_token_ids, and ignore_eos=True where the model's own shall not stop",
    "do_sample": "temperature, where 0 is greedy",
    "repeat_penalty": "repetition_penalty",
    "random_seed": "seed",
    "logits_processor": "logits_processors",
    "negative_prompt_ids": "negative_prompt",
    "prompt_lookup_num_tokens": 'drafter="ngram" and num_draft_tokens',
    **{f"guided_{kind}": f"structured_outputs={{{kind!r}: ...}}" for kind in ("json", "regex", "choice", "grammar")},
    "response_format": "structured_outputs={'json': ...}",
    "sampling_params": "params",
    "generation_config": "params=paceline.from_generation_config(...)",
    "streamer": "paceline.stream",
    "stream": "paceline.stream",
    "input_ids": "prompts",
    "inputs": "prompts",
    **dict.fromkeys(("dtype", "torch_dtype", "device", "device_map"), "paceline.load(..., dtype=..., device=...)"),
}


def with_options(call: Callable[..., object], params: ParamsLike, options: Mapping[str, Any]) -> ParamsLike:
    """``params`` with the keywords ``options`` of ``call``, in every one where there are several.

    Raises TypeError for a keyword that is no parameter, with the name that was meant, and ValueError for wrong values,
    for a parameter that ``params`` have too, and for a seed beside several ``params``, which would then be one noise.
    """
    for name in options:
        if name not in SamplingOptions.__annotations__:
            raise TypeError(_unknown(call, name))
    if not options:
        return params
    if params is None:
        return SamplingParams(**options)
    if isinstance(params, SamplingParams):
        return _joined(params, options)
    if not isinstance(params, Sequence) or not all(isinstance(one, SamplingParams) for one in params):
        return params  # refused with the prompts
    if "seed" in options:
        raise ValueError(f"seed={options['seed']!r} beside {len(params)} params: give each of them its seed")
    return [_joined(one, options) for one in params]


def _joined(params: SamplingParams, options: Mapping[str, Any]) -> SamplingParams:
    given = params.differing()
    twice = [name for name in options if name in given]
    if twice:
        name = twice[0]
        raise ValueError(f"{name}={options[name]!r}, and params with {name}={given[name]!r}: give one of them")
    return replace(params, **options)


def _unknown(call: Callable[..., object], name: str) -> str:
    own = [one for one, kind in signature(call).parameters.items() if kind.kind is not Parameter.VAR_KEYWORD]
    known = [*SamplingOptions.__annotations__, *(one for one in own if one != "self")]
    text = f"{call.__name__}() has no keyword {name!r}"
    if name in ELSEWHERE:
        return f"{text}: give {ELSEWHERE[name]}"
    near = get_close_matches(name, known, n=1)
    if near:
        return f"{text}: did you mean {near[0]}?"
    if is_known(name):
        return f"{text}, which is an option of transformers: leave it out, or call paceline.hf.generate"
    return f"{text}: leave it out; known: {', '.join(known)}"
