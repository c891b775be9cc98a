"""Parses vLLM's ``speculative_config``, a mapping or JSON."""

import ast
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from paceline.core.tree import Draw
from paceline.drafters.tree.shapes import Topology

DEFAULT_NGRAM = 5  # of vLLM, if neither prompt_lookup_max nor prompt_lookup_min is given

# vLLM's names of how a draft model draws; the verifier chooses among these.
DRAWS: dict[str, frozenset[Draw]] = {
    "greedy": frozenset({Draw.FIXED}),
    "probabilistic": frozenset({Draw.SHARED, Draw.IID, Draw.NO_REPLACEMENT}),
}
ANY_DRAW = frozenset(Draw)

# Accepted: a lossless verifier does this anyway.
REJECTION_SAMPLE_METHODS = ("standard", "strict")

COMMON = ("method", "num_speculative_tokens", "rejection_sample_method")


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramSpeculation:
    """Draft ``num_draft_tokens`` per step by the longest match of ``max_ngram`` down to ``min_ngram`` tokens."""

    num_draft_tokens: int
    max_ngram: int
    min_ngram: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpeculation:
    """Draft ``num_draft_tokens`` per step with a draft model or head, with one of ``draws``.

    With a ``tree`` this is its depth.
    """

    num_draft_tokens: int
    model: str
    revision: str | None
    draws: frozenset[Draw]
    tree: Topology | None = None


Speculation: TypeAlias = NgramSpeculation | ModelSpeculation


def read_speculative_config(config: Mapping[str, object] | str) -> Speculation:
    """The speculation that a ``speculative_config``, a mapping or JSON object, asks for. None is not given, as in vLLM.

    - ``method``: "ngram" or "draft_model"; optional if ``model`` is given.
    - ``num_speculative_tokens``: drafted tokens per step, at least 1; required unless a tree is given.
    - ``prompt_lookup_max``, ``prompt_lookup_min`` (ngram): the longest and shortest match in tokens. If one is given,
      the other equals it; if none is, both are 5.
    - ``model`` (draft_model): required; a directory or Hub id, or the directory of a draft head. ``revision``: of a
      Hub id.
    - ``draft_sample_method`` (draft_model): "greedy" drafts the most probable token, "probabilistic" samples; by
      default the verifier chooses. The output has the target's distribution in every case.
    - ``speculative_token_tree`` (draft_model): the nodes of a draft tree in vLLM's syntax, a string in which each node
      is its path of child ranks, "[(0,), (1,), (0, 0)]"; ``num_speculative_tokens`` of them, if that is given.
    - ``draft_tensor_parallel_size`` (draft_model): 1.
    - ``rejection_sample_method``: "standard" and "strict" have no effect; the verifier is a separate option.

    Raises ValueError, with the known names and values, for anything else.
    """
    values = {name: value for name, value in _mapping(config).items() if value is not None}
    given = values.get("method")
    method = given if given is not None else "draft_model" if "model" in values else None
    if method is None:
        raise ValueError(f"speculative_config without method and model: give method, one of {', '.join(METHODS)}")
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"speculative_config: method={method!r} is not supported; known: {', '.join(METHODS)}")
    own, read = METHODS[method]
    unknown = [f"{name}={value!r}" for name, value in values.items() if name not in COMMON + own]
    if unknown:
        raise ValueError(
            f"speculative_config: {', '.join(unknown)} cannot be honoured with method={method!r}; known: "
            f"{', '.join(COMMON + own)}"
        )
    _one_of(values, "rejection_sample_method", REJECTION_SAMPLE_METHODS)
    return read(values)


def _read_ngram(values: Mapping[str, object]) -> NgramSpeculation:
    num_draft_tokens = _num_draft_tokens(values)
    longest, shortest = _count(values, "prompt_lookup_max"), _count(values, "prompt_lookup_min")
    longest = longest or shortest or DEFAULT_NGRAM
    shortest = shortest or longest
    if shortest > longest:
        raise ValueError(
            f"speculative_config: prompt_lookup_min={shortest} is more than prompt_lookup_max={longest}: lower it"
        )
    return NgramSpeculation(num_draft_tokens=num_draft_tokens, max_ngram=longest, min_ngram=shortest)


def _read_model(values: Mapping[str, object]) -> ModelSpeculation:
    tree = _tree(values, "speculative_token_tree")
    model = _text(values, "model")
    if model is None:
        raise ValueError("speculative_config: method='draft_model' needs model: give a directory or Hub id")
    size = _count(values, "draft_tensor_parallel_size")
    if size not in (None, 1):
        raise ValueError(f"speculative_config: draft_tensor_parallel_size={size} is not supported; give 1")
    draw = _one_of(values, "draft_sample_method", tuple(DRAWS))
    return ModelSpeculation(
        num_draft_tokens=_num_draft_tokens(values) if tree is None else tree.depth,
        model=model,
        revision=_text(values, "revision"),
        draws=ANY_DRAW if draw is None else DRAWS[draw],
        tree=tree,
    )


# Method -> the keys that it reads beside the common ones, and its parser.
METHODS: dict[str, tuple[tuple[str, ...], Callable[[Mapping[str, object]], Speculation]]] = {
    "ngram": (("prompt_lookup_max", "prompt_lookup_min"), _read_ngram),
    "draft_model": (
        ("model", "revision", "draft_sample_method", "speculative_token_tree", "draft_tensor_parallel_size"),
        _read_model,
    ),
}


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


def _num_draft_tokens(values: Mapping[str, object]) -> int:
    count = _count(values, "num_speculative_tokens")
    if count is None:
        raise ValueError("speculative_config without num_speculative_tokens: give how many tokens to draft a step")
    return count


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
