"""Sampling options as they are written after ``/set``, read by those of ``SamplingParams``."""

import json
from dataclasses import fields
from difflib import get_close_matches

from paceline.api import SamplingParams
from paceline.api.params import NOT_YET

REFUSED = {  # of an answer in a terminal, with the reason
    "n": "a conversation goes on from one answer; /retry gives another one",
    "detokenize": "an answer is a text",
    "logprobs": "a text cannot show them; use paceline generate --json",
    "prompt_logprobs": "a text cannot show them; use paceline score",
    "logits_processors": "they are code; use the Python interface",
    **{name: refusal.reason for name, refusal in NOT_YET.items()},
}
NAMES = tuple(field.name for field in fields(SamplingParams) if field.name not in REFUSED)
DEFAULT = "default"  # in the place of a value


def check_params(params: SamplingParams, *, prefix: str = "--") -> SamplingParams:
    """Raise ValueError for an option that a conversation cannot honour; ``prefix`` is what it is written after."""
    for name, value in params.differing().items():
        if name in REFUSED:
            raise ValueError(f"{prefix}{name} {value}: {REFUSED[name]}; leave it out")
    return params


def set_option(params: SamplingParams, name: str, text: str) -> SamplingParams:
    """``params`` with ``name`` read from ``text``: JSON, or a bare string. Raises ValueError for a wrong one."""
    if name in REFUSED:
        raise ValueError(f"/set {name}: {REFUSED[name]}")
    if name not in NAMES:
        near = get_close_matches(name, NAMES, n=1)
        raise ValueError(f"/set {name}: no such option; {f'did you mean {near[0]}?' if near else '/set lists all'}")
    if text == DEFAULT:
        return params.updated({name: getattr(SamplingParams(), name)})
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    return params.updated({name: value})


def shown(params: SamplingParams, name: str) -> str:
    """A value as ``set_option`` reads it."""
    value = getattr(params, name)
    return json.dumps(params.differing().get(name, value), ensure_ascii=False, default=str)
