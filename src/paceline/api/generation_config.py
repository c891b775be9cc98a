"""Generation options of transformers, as an object, a dict or a file, to parameters of ours.

Imports nothing of transformers and decodes nothing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from paceline.api.generation_fields import DEFAULT_MAX_NEW_TOKENS, DEFAULT_TOP_K, Values, check
from paceline.api.params import SamplingParams
from paceline.api.values import token_lists

CUTOFFS = ("epsilon_cutoff", "eta_cutoff")


@runtime_checkable
class DescribesGeneration(Protocol):
    """What is needed of a transformers ``GenerationConfig``."""

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        ...


GenerationConfigLike: TypeAlias = DescribesGeneration | Values | str | Path


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """What a configuration asks for, where ``SamplingParams`` alone cannot say it.

    - ``params``: without end-of-text tokens. ``max_tokens`` is ``max_new_tokens``, 20 where no length is given, or None
      where ``max_length`` decides; ``n`` is ``num_return_sequences``.
    - ``max_new_tokens``: as given. None: not given.
    - ``max_length``, ``min_length``: tokens of prompt and continuation together. None: not given, or overruled by a
      count of new tokens.
    - ``eos``: the end-of-text tokens, in place of the model's own. None: not given. Ids below 0, which never appear,
      are left out, so that -1 alone is the empty tuple: nothing ends the text.
    - ``pad``: what fills shorter rows, as given. None: not given.
    - ``return_dict``: whether an object comes back instead of token ids alone.
    - ``num_assistant_tokens``, ``prompt_lookup_num_tokens``, ``max_matching_ngram_size``: how much to draft, and by
      which matches. None: not given.
    """

    params: SamplingParams
    max_new_tokens: int | None
    max_length: int | None
    min_length: int | None
    eos: tuple[int, ...] | None
    pad: int | None
    return_dict: bool
    num_assistant_tokens: int | None
    prompt_lookup_num_tokens: int | None
    max_matching_ngram_size: int | None

    @property
    def num_return_sequences(self) -> int:
        """Continuations of every prompt."""
        return self.params.n

    def for_prompt(self, num_prompt_tokens: int, *, context: int) -> SamplingParams:
        """The parameters for a prompt of this many tokens and a model of ``context`` positions, end-of-text included.

        Raises ValueError where no room for a new token is left, and where the least length exceeds the most.
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
    """The parameters that mean what ``config`` means to transformers.

    config: a transformers ``GenerationConfig``, its dict, or a path to generation_config.json or its directory. Fields
    that are None or missing have transformers' defaults: greedy, 20 new tokens; where ``do_sample`` is True, top-k 50.
    End-of-text tokens that it names take the place of the model's own, by ``stop_token_ids`` and ``ignore_eos``. What
    it says of drafting, padding and the form of the result has no place in the parameters and is left out.

    Raises ValueError as ``generation_options`` does, and for ``max_length`` and ``min_length`` without
    ``max_new_tokens`` and ``min_new_tokens``: they depend on the prompt.
    """
    options = generation_options(config)
    for name, length in (("max", options.max_length), ("min", options.min_length)):
        if length is not None:
            raise ValueError(
                f"{name}_length={length} counts the prompt too: give {name}_new_tokens, or take "
                "generation_options(config).for_prompt(...)"
            )
    return _ended(options.params, options.eos)


def generation_options(config: GenerationConfigLike) -> GenerationOptions:
    """Everything that ``config`` asks for; see ``from_generation_config`` for what it may be.

    Raises ValueError for fields that cannot be honoured, all of them in one message, for unknown fields, for values
    outside their range, and for a path without a configuration.
    """
    values = _read(config)
    check(values)
    max_new_tokens, min_new_tokens = _count(values, "max_new_tokens", 1), _count(values, "min_new_tokens", 0)
    max_length, min_length = _count(values, "max_length", 1), _count(values, "min_length", 0)
    default = DEFAULT_MAX_NEW_TOKENS if max_length is None else None
    count = _count(values, "num_return_sequences", 1)
    if count not in (None, 1) and not _flag(values, "do_sample"):
        raise ValueError(f"num_return_sequences={count} without do_sample=True: greedy decoding has one text")
    params = SamplingParams(
        **_sampling(values),
        **_processors(values),
        n=count or 1,
        max_tokens=max_new_tokens or default,
        min_tokens=min_new_tokens or 0,
        stop=values.get("stop_strings"),
    )
    return GenerationOptions(
        params=params,
        max_new_tokens=max_new_tokens,
        max_length=max_length if max_new_tokens is None else None,
        min_length=(min_length or None) if min_new_tokens is None else None,
        eos=_eos(values.get("eos_token_id")),
        pad=_integer(values, "pad_token_id"),
        return_dict=_flag(values, "return_dict_in_generate"),
        num_assistant_tokens=_count(values, "num_assistant_tokens", 1),
        prompt_lookup_num_tokens=_count(values, "prompt_lookup_num_tokens", 1),
        max_matching_ngram_size=_count(values, "max_matching_ngram_size", 1),
    )


def _read(config: GenerationConfigLike) -> Values:
    if isinstance(config, Mapping):
        return config
    if isinstance(config, DescribesGeneration):
        return config.to_dict()
    if not isinstance(config, str | Path):
        raise ValueError(f"{config!r} is no generation configuration: give a GenerationConfig, its dict, or a path")
    path = Path(config)
    path = path / "generation_config.json" if path.is_dir() else path
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"no such generation configuration: {path}; give the file or its directory") from error
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} is no generation configuration: it holds no JSON object")
    return values


def _sampling(values: Values) -> dict[str, Any]:
    """The distribution of a token as arguments of ``SamplingParams``."""
    if not _flag(values, "do_sample"):
        return {"temperature": 0.0}
    if values.get("temperature") == 0:
        raise ValueError("do_sample=True with temperature=0: give do_sample=False for greedy decoding")
    top_k = _count(values, "top_k", 0)
    names = ("temperature", "top_p", "min_p", "typical_p")
    cutoffs = {name: values[name] for name in CUTOFFS if values.get(name) not in (None, 1)}
    return {**_given(values, names), **cutoffs, "top_k": DEFAULT_TOP_K if top_k is None else top_k}


def _processors(values: Values) -> dict[str, Any]:
    """What changes logits, as arguments of ``SamplingParams``. Ids below 0, which no token has, need no suppression."""
    names = ("repetition_penalty", "no_repeat_ngram_size", "sequence_bias", "bad_words_ids", "guidance_scale")
    suppressed = {
        name: [token for token in tokens if token >= 0] if _are_integers(tokens) else tokens
        for name, tokens in _given(values, ("suppress_tokens", "begin_suppress_tokens")).items()
    }
    return {**_given(values, names), **suppressed}


def _given(values: Values, names: Sequence[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if values.get(name) is not None}


def _are_integers(given: object) -> bool:
    return isinstance(given, Sequence) and all(isinstance(one, Integral) for one in given)


def _ended(params: SamplingParams, eos: tuple[int, ...] | None) -> SamplingParams:
    """``params`` ended by these end-of-text tokens in place of the model's own; None leaves the model's own.

    Like transformers it does not ban a text's end: bad words that are one of these tokens are left out.
    """
    if eos is None:
        return params
    bad = token_lists("bad_words_ids", params.bad_words_ids)
    ends = [(token,) for token in eos]
    kept = tuple(tokens for tokens in bad if tokens not in ends)
    return replace(params, stop_token_ids=eos, ignore_eos=True, bad_words_ids=kept)


def _eos(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    given = value if isinstance(value, list | tuple) else [value]
    ids = [token for token in given if isinstance(token, int) and not isinstance(token, bool)]
    if len(ids) < len(given):
        raise ValueError(f"eos_token_id={value!r}: give a token id or a list of them")
    return tuple(dict.fromkeys(token for token in ids if token >= 0))


def _integer(values: Values, name: str) -> int | None:
    value = values.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(f"{name}={value!r}: give an integer, or None")
    return value


def _count(values: Values, name: str, least: int) -> int | None:
    value = _integer(values, name)
    if value is not None and value < least:
        raise ValueError(f"{name}={value}: give at least {least}, or None")
    return value


def _flag(values: Values, name: str) -> bool:
    value = values.get(name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}: give True, False or None")
    return value is True
