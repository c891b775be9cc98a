"""Converts a transformers ``GenerationConfig`` (object, dict or file) to ``SamplingParams``, without transformers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from paceline.api import values
from paceline.api.generation_fields import DEFAULT_MAX_NEW_TOKENS, DEFAULT_TOP_K, Values, check
from paceline.api.params import SamplingParams

CUTOFFS = ("epsilon_cutoff", "eta_cutoff")


@runtime_checkable
class DescribesGeneration(Protocol):
    """The part of a transformers ``GenerationConfig`` that is read."""

    def to_dict(self) -> dict[str, Any]: ...


GenerationConfigLike: TypeAlias = DescribesGeneration | Values | str | Path


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """A configuration, including what ``SamplingParams`` cannot hold. None: not given.

    - ``params``: without end-of-text tokens. ``max_tokens`` is ``max_new_tokens``, 20 if no length is given, or None
      if ``max_length`` decides; ``n`` is ``num_return_sequences``.
    - ``max_length``, ``min_length``: limits of prompt and output together. None also if ``max_new_tokens`` or
      ``min_new_tokens`` overrides them.
    - ``eos``: the end-of-text tokens, which replace the model's own. Ids below 0 are left out, so -1 alone gives ():
      no token ends the output.
    - ``pad``: the token that fills shorter rows.
    - ``return_dict``: whether to return an object instead of token ids; ``output_scores`` and ``output_logits``:
      whether it holds them.
    - ``max_time``: seconds, after which rows end.
    - ``forced_bos``, ``forced_eos``: the token after a prompt of one token, and the last one of a whole length.
    - ``num_assistant_tokens``, ``prompt_lookup_num_tokens``, ``max_matching_ngram_size``: draft length and n-gram size.
    """

    params: SamplingParams
    max_new_tokens: int | None
    max_length: int | None
    min_length: int | None
    eos: tuple[int, ...] | None
    pad: int | None
    return_dict: bool
    output_scores: bool
    output_logits: bool
    max_time: float | None
    forced_bos: int | None
    forced_eos: int | None
    num_assistant_tokens: int | None
    prompt_lookup_num_tokens: int | None
    max_matching_ngram_size: int | None

    @property
    def num_return_sequences(self) -> int:
        """Outputs per prompt."""
        return self.params.n

    def for_prompt(self, num_prompt_tokens: int, *, context: int) -> SamplingParams:
        """The parameters for a prompt of this length and a model of ``context`` positions, with end-of-text tokens.

        Raises ValueError if there is no room for a new token, and if the minimum length exceeds the maximum.
        """
        max_tokens = self.max_new_tokens
        if max_tokens is None:
            name, most = ("max_length", self.max_length) if self.max_length is not None else ("context", context)
            room = most - num_prompt_tokens
            if room < 1:
                raise ValueError(
                    f"{name}={most} counts the prompt too, and its {num_prompt_tokens} tokens leave no room for a new "
                    f"one: raise {name} or shorten the prompt"
                )
            max_tokens = room if self.max_length is not None else min(DEFAULT_MAX_NEW_TOKENS, room)
        least = self.params.min_tokens if self.min_length is None else max(0, self.min_length - num_prompt_tokens)
        return replace(_ended(self.params, self.eos), max_tokens=max_tokens, min_tokens=least)


def from_generation_config(config: GenerationConfigLike) -> SamplingParams:
    """The parameters with the meaning that ``config`` has in transformers.

    config: a transformers ``GenerationConfig``, its dict, or a path to generation_config.json or its directory. Fields
    that are None or missing have transformers' defaults: greedy, 20 new tokens; with ``do_sample``, top-k 50.
    Its end-of-text tokens replace the model's own, as ``stop_token_ids`` with ``ignore_eos``. Fields on drafting,
    padding and the type of the result are left out.

    Raises ValueError as ``generation_options`` does, for ``max_time`` and forced tokens, which are none, and for
    ``max_length`` and ``min_length`` without ``max_new_tokens`` and ``min_new_tokens``: these depend on the prompt.
    """
    options = generation_options(config)
    if options.max_time is not None:
        raise ValueError(f"max_time={options.max_time}: leave it out, and close the stream of paceline.stream in time")
    for name, token in (("forced_bos_token_id", options.forced_bos), ("forced_eos_token_id", options.forced_eos)):
        if token is not None:
            raise ValueError(f"{name}={token}: leave it out; paceline.hf.generate takes it")
    for name, length in (("max", options.max_length), ("min", options.min_length)):
        if length is not None:
            raise ValueError(
                f"{name}_length={length} counts the prompt too: give {name}_new_tokens, or take "
                "generation_options(config).for_prompt(...)"
            )
    return _ended(options.params, options.eos)


def generation_options(config: GenerationConfigLike) -> GenerationOptions:
    """All options of ``config``, in the forms that ``from_generation_config`` takes.

    Raises ValueError for unsupported and unknown fields, all of them in one message, for values outside their range,
    and for a path without a configuration.
    """
    fields = _read(config)
    check(fields)
    max_new_tokens, min_new_tokens = _count(fields, "max_new_tokens", 1), _count(fields, "min_new_tokens", 0)
    max_length, min_length = _count(fields, "max_length", 1), _count(fields, "min_length", 0)
    default = DEFAULT_MAX_NEW_TOKENS if max_length is None else None
    count = _count(fields, "num_return_sequences", 1)
    if count not in (None, 1) and not _flag(fields, "do_sample"):
        raise ValueError(f"num_return_sequences={count} without do_sample=True: greedy decoding has one output")
    returns_dict = _flag(fields, "return_dict_in_generate")
    params = SamplingParams(
        **_sampling(fields),
        **_processors(fields),
        n=count or 1,
        max_tokens=max_new_tokens or default,
        min_tokens=min_new_tokens or 0,
        stop=fields.get("stop_strings"),
    )
    return GenerationOptions(
        params=params,
        max_new_tokens=max_new_tokens,
        max_length=max_length if max_new_tokens is None else None,
        min_length=(min_length or None) if min_new_tokens is None else None,
        eos=_eos(fields.get("eos_token_id")),
        pad=values.integer("pad_token_id", fields.get("pad_token_id"), optional=True),
        return_dict=returns_dict,
        output_scores=returns_dict and _flag(fields, "output_scores"),
        output_logits=returns_dict and _flag(fields, "output_logits"),
        max_time=None if fields.get("max_time") is None else values.real("max_time", fields["max_time"]),
        forced_bos=_forced("forced_bos_token_id", fields),
        forced_eos=_forced("forced_eos_token_id", fields),
        num_assistant_tokens=_count(fields, "num_assistant_tokens", 1),
        prompt_lookup_num_tokens=_count(fields, "prompt_lookup_num_tokens", 1),
        max_matching_ngram_size=_count(fields, "max_matching_ngram_size", 1),
    )


def _forced(name: str, fields: Values) -> int | None:
    """A token that must be at one place. Raises ValueError for several of which one must be."""
    value = fields.get(name)
    if isinstance(value, Sequence) and len(value) == 1:
        value = value[0]
    return values.integer(name, value, optional=True)


def _read(config: GenerationConfigLike) -> Values:
    if isinstance(config, Mapping):
        return config
    if isinstance(config, DescribesGeneration):
        return config.to_dict()
    if not isinstance(config, str | Path):
        raise ValueError(f"{config!r} is not a generation configuration: give a GenerationConfig, its dict, or a path")
    path = Path(config)
    path = path / "generation_config.json" if path.is_dir() else path
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"no such generation configuration: {path}; give the file or its directory") from error
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{path} is not a generation configuration: it holds no JSON object")
    return fields


def _sampling(fields: Values) -> dict[str, Any]:
    """Temperature and filters as arguments of ``SamplingParams``."""
    if not _flag(fields, "do_sample"):
        return {"temperature": 0.0}
    if fields.get("temperature") == 0:
        raise ValueError("do_sample=True with temperature=0: give do_sample=False for greedy decoding")
    top_k = _count(fields, "top_k", 0)
    names = ("temperature", "top_p", "min_p", "typical_p")
    cutoffs = {name: fields[name] for name in CUTOFFS if fields.get(name) not in (None, 1)}
    return {**_given(fields, names), **cutoffs, "top_k": DEFAULT_TOP_K if top_k is None else top_k}


def _processors(fields: Values) -> dict[str, Any]:
    """Logits processors as arguments of ``SamplingParams``. Suppressed ids below 0 are dropped."""
    names = ("repetition_penalty", "no_repeat_ngram_size", "sequence_bias", "bad_words_ids", "guidance_scale")
    suppressed = {
        name: [token for token in tokens if token >= 0] if _are_integers(tokens) else tokens
        for name, tokens in _given(fields, ("suppress_tokens", "begin_suppress_tokens")).items()
    }
    return {**_given(fields, names), **suppressed}


def _given(fields: Values, names: Sequence[str]) -> dict[str, Any]:
    return {name: fields[name] for name in names if fields.get(name) is not None}


def _are_integers(given: object) -> bool:
    return isinstance(given, Sequence) and all(isinstance(one, Integral) for one in given)


def _ended(params: SamplingParams, eos: tuple[int, ...] | None) -> SamplingParams:
    """``params`` with these end-of-text tokens instead of the model's own; None keeps the model's own.

    As in transformers, bad words that are one of these tokens are not banned.
    """
    if eos is None:
        return params
    ends = [(token,) for token in eos]
    kept = tuple(tokens for tokens in params.bad_words_ids or () if tokens not in ends)
    return replace(params, stop_token_ids=eos, ignore_eos=True, bad_words_ids=kept)


def _eos(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    given = value if isinstance(value, list | tuple) else [value]
    ids = [token for token in given if isinstance(token, int) and not isinstance(token, bool)]
    if len(ids) < len(given):
        raise ValueError(f"eos_token_id={value!r}: give a token id or a list of them")
    return tuple(dict.fromkeys(token for token in ids if token >= 0))


def _count(fields: Values, name: str, least: int) -> int | None:
    return values.count(least, f"at least {least}, or None", optional=True)(name, fields.get(name))


def _flag(fields: Values, name: str) -> bool:
    return values.flag(name, fields.get(name), optional=True) is True
