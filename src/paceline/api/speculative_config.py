"""Parses vLLM's ``speculative_config``, a mapping or JSON. What is read and what is refused: speculative_fields."""

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from sys import float_info
from typing import TypeAlias, TypeGuard

from paceline.api.speculative_fields import (
    HARMLESS,
    HEAD_METHODS,
    HONOURED,
    KEYS,
    METHODS,
    MODEL,
    MTP_ALIASES,
    NGRAM,
    REFUSED,
    REFUSED_METHODS,
    REFUSED_RULES,
)
from paceline.core.token_index import MAX_DRAFT
from paceline.core.tree import Draw
from paceline.drafters.tree.shapes import Topology

DEFAULT_NGRAM = 5  # of vLLM, if neither prompt_lookup_max nor prompt_lookup_min is given
DEFAULT_TREE_DEPTH, DEFAULT_CACHED_REQUESTS = 24, 10_000  # of vLLM's suffix decoding
DEFAULT_SPEC_FACTOR, DEFAULT_TOKEN_PROB = 1.0, 0.1

# vLLM's names of how a draft model draws; the verifier chooses among these.
DRAWS: dict[str, frozenset[Draw]] = {
    "greedy": frozenset({Draw.FIXED}),
    "probabilistic": frozenset({Draw.SHARED, Draw.IID, Draw.NO_REPLACEMENT}),
}
ANY_DRAW = frozenset(Draw)

# Accepted: a lossless verifier does this anyway.
REJECTION_SAMPLE_METHODS = ("standard", "strict")


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramSpeculation:
    """Draft ``num_draft_tokens`` per step (None: not given) by the longest match of ``max_ngram`` down to ``min_ngram``
    tokens. ``unused`` are the keys that have no effect.
    """

    num_draft_tokens: int | None
    max_ngram: int
    min_ngram: int
    unused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpeculation:
    """Draft ``num_draft_tokens`` per step (None: not given) with a draft model or head, with one of ``draws``.

    ``model`` None is the target's own directory, for the method mtp alone. With a ``tree`` this is its depth.
    ``unused`` are the keys that have no effect.
    """

    num_draft_tokens: int | None
    model: str | None
    revision: str | None
    draws: frozenset[Draw]
    tree: Topology | None = None
    heterogeneous: bool = False  # whether tokens that both vocabularies have are drafted alone (TLI)
    method: str = "draft_model"
    unused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixSpeculation:
    """Draft at most ``num_draft_tokens`` per step (None: not given) as the drafter `suffix` with these options.

    ``unused`` are the keys that have no effect.
    """

    num_draft_tokens: int | None
    max_depth: int
    max_outputs: int
    factor: float
    min_prob: float
    unused: tuple[str, ...] = ()


Speculation: TypeAlias = NgramSpeculation | ModelSpeculation | SuffixSpeculation


def is_speculative_config(given: object) -> TypeGuard[Mapping[str, object] | str]:
    """Whether ``given`` is a mapping, or text that can only be JSON of one."""
    return isinstance(given, Mapping) or (isinstance(given, str) and given.lstrip().startswith("{"))


def read_speculative_config(config: Mapping[str, object] | str) -> Speculation:
    """The speculation that a ``speculative_config``, a mapping or JSON object, asks for. None is not given, as in vLLM.

    Every method and key of vLLM, with what it means here or what to use instead, is in docs/speculative_config.md.
    Raises ValueError, which says the latter, for what cannot be honoured, and for unknown keys.
    """
    values = {name: value for name, value in _mapping(config).items() if value is not None}
    method = _method(values)
    problems = [problem for name, value in values.items() if (problem := _problem(name, value, method)) is not None]
    if problems:
        raise ValueError(f"speculative_config: {'; '.join(problems)}")
    _one_of(values, "rejection_sample_method", REJECTION_SAMPLE_METHODS)
    size = _count(values, "draft_tensor_parallel_size")
    if size not in (None, 1):
        raise ValueError(
            f"speculative_config: draft_tensor_parallel_size={size}: a draft runs on its target's device; give 1"
        )
    unused = tuple(name for name, value in values.items() if name in HARMLESS and value is not False)
    if method in MODEL:
        return _read_model(values, unused, method)
    return (_read_ngram if method in NGRAM else _read_suffix)(values, unused)


def _method(values: Mapping[str, object]) -> str:
    """The method that is named, or that ``model`` stands for. Raises ValueError for one that drafts nothing here."""
    given, model = values.get("method"), values.get("model")
    if given is None and model is None:
        raise ValueError(f"speculative_config without method and model: give method, one of {', '.join(METHODS)}")
    method = given
    if given is None:
        dotted = isinstance(model, str) and "." in model and all(map(str.isidentifier, model.split(".")))
        method = "custom_class" if dotted and not Path(str(model)).is_dir() else "draft_model"
    if model in NGRAM and given in (None, *NGRAM):
        method = given or model  # vLLM takes the word for the model, too
    if isinstance(method, str) and method in METHODS:
        return "mtp" if method in MTP_ALIASES else method
    what = f"method={method!r}" if given is not None else f"model={model!r}, which is a class of Python in vLLM"
    if isinstance(method, str) and method in REFUSED_METHODS:
        raise ValueError(f"speculative_config: {what}: {REFUSED_METHODS[method]}")
    near = get_close_matches(str(method), (*METHODS, *REFUSED_METHODS), n=1)
    raise ValueError(
        f"speculative_config: unknown {what}" + (f", near {near[0]}" if near else "") + f"; give {', '.join(METHODS)}"
    )


def _problem(name: str, value: object, method: str) -> str | None:
    """Why a key cannot be honoured with a method, and what to do; None for one that can, and for a harmless one."""
    if name in HONOURED:
        methods, _ = HONOURED[name]
        if method in methods or (name == "model" and value in NGRAM):
            if name == "rejection_sample_method" and isinstance(value, str) and value in REFUSED_RULES:
                return f"{name}={value!r}: {REFUSED_RULES[value]}"
            return None
        others = [one for one in methods if one not in HEAD_METHODS]
        heads = ["one of a draft head"] if len(others) < len(methods) else []
        return f"{name}={value!r} is for method {' or '.join(others + heads)}, and this is {method}: leave it out"
    if name in REFUSED:
        # 0 is not False here
        neutral = any(value == one and type(value) is type(one) for one in REFUSED[name].neutral)
        return None if neutral else f"{name}={value!r}: {REFUSED[name].reason}"
    if name in HARMLESS:
        return None
    near = get_close_matches(str(name), KEYS, n=3, cutoff=0.5)
    return f"unknown key {name!r}" + (f", near {', '.join(near)}" if near else "") + ": leave it out"


def _read_ngram(values: Mapping[str, object], unused: tuple[str, ...]) -> NgramSpeculation:
    longest, shortest = _count(values, "prompt_lookup_max"), _count(values, "prompt_lookup_min")
    longest = longest or shortest or DEFAULT_NGRAM
    shortest = shortest or longest
    if shortest > longest:
        raise ValueError(
            f"speculative_config: prompt_lookup_min={shortest} is more than prompt_lookup_max={longest}: lower it"
        )
    count = _count(values, "num_speculative_tokens")
    return NgramSpeculation(num_draft_tokens=count, max_ngram=longest, min_ngram=shortest, unused=unused)


def _read_suffix(values: Mapping[str, object], unused: tuple[str, ...]) -> SuffixSpeculation:
    depth = _count(values, "suffix_decoding_max_tree_depth") or DEFAULT_TREE_DEPTH
    if not 2 <= depth <= MAX_DRAFT + 1:
        raise ValueError(
            f"speculative_config: suffix_decoding_max_tree_depth={depth}: give 2 to {MAX_DRAFT + 1}, for the tokens of "
            "a match and of its draft"
        )
    outputs = values.get("suffix_decoding_max_cached_requests", DEFAULT_CACHED_REQUESTS)
    if isinstance(outputs, bool) or not isinstance(outputs, int) or outputs < 0:
        raise ValueError(
            f"speculative_config: suffix_decoding_max_cached_requests={outputs!r}: give 0 (keep no outputs) or a count"
        )
    return SuffixSpeculation(
        num_draft_tokens=_count(values, "num_speculative_tokens"),
        max_depth=depth,
        max_outputs=outputs,
        factor=_number(values, "suffix_decoding_max_spec_factor", DEFAULT_SPEC_FACTOR, float_info.max),
        min_prob=_number(values, "suffix_decoding_min_token_prob", DEFAULT_TOKEN_PROB, 1.0),
        unused=unused,
    )


def _read_model(values: Mapping[str, object], unused: tuple[str, ...], method: str) -> ModelSpeculation:
    tree = _tree(values, "speculative_token_tree")
    model = _text(values, "model")
    if model is None and method != "mtp":
        raise ValueError(f"speculative_config: method={method!r} needs model: give a directory or Hub id")
    draw = _one_of(values, "draft_sample_method", tuple(DRAWS))
    return ModelSpeculation(
        num_draft_tokens=_count(values, "num_speculative_tokens") if tree is None else tree.depth,
        model=model,
        revision=_text(values, "revision"),
        draws=ANY_DRAW if draw is None else DRAWS[draw],
        tree=tree,
        heterogeneous=_truth(values, "use_heterogeneous_vocab"),
        method=method,
        unused=unused,
    )


def _mapping(config: Mapping[str, object] | str) -> Mapping[str, object]:
    if not isinstance(config, str):
        return config
    try:
        values = json.loads(config)
    except ValueError as error:
        raise ValueError(f"speculative_config {config!r} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(
            f'speculative_config {config!r} is not a JSON object: give one, like \'{{"method": "ngram"}}\''
        )
    return values


def _tree(values: Mapping[str, object], name: str) -> Topology | None:
    text = _text(values, name)
    if text is None:
        return None
    try:
        nodes = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        nodes = None
    if not isinstance(nodes, list | tuple) or not nodes or not all(_is_path(node) for node in nodes):
        raise ValueError(f"speculative_config: {name}={text!r}: give a list of tuples, like '[(0,), (1,), (0, 0)]'")
    try:
        tree = Topology(tuple(tuple(node) for node in nodes))
    except ValueError as error:
        raise ValueError(f"speculative_config: {name}={text!r}: {error}") from error
    count = _count(values, "num_speculative_tokens")
    if count not in (None, tree.num_drafted):
        raise ValueError(
            f"speculative_config: num_speculative_tokens={count} and a {name} of {tree.num_drafted} nodes: give "
            f"{tree.num_drafted}, or leave it out"
        )
    return tree


def _is_path(node: object) -> bool:
    return isinstance(node, tuple) and all(type(rank) is int for rank in node)


def _count(values: Mapping[str, object], name: str) -> int | None:
    value = values.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"speculative_config: {name}={value!r}: give a count of at least 1")
    return value


def _number(values: Mapping[str, object], name: str, default: float, most: float) -> float:
    value = values.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        wanted = "a number from 0 to 1" if most == 1 else "a number of at least 0"
        raise ValueError(f"speculative_config: {name}={value!r}: give {wanted}")
    return float(value)


def _truth(values: Mapping[str, object], name: str) -> bool:
    value = values.get(name, False)
    if not isinstance(value, bool):
        raise ValueError(f"speculative_config: {name}={value!r}: give true or false")
    return value


def _text(values: Mapping[str, object], name: str) -> str | None:
    value = values.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"speculative_config: {name}={value!r}: give a string")
    return value


def _one_of(values: Mapping[str, object], name: str, known: tuple[str, ...]) -> str | None:
    value = _text(values, name)
    if value is not None and value not in known:
        raise ValueError(f"speculative_config: {name}={value!r} is not supported; known: {', '.join(known)}")
    return value
