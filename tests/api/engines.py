"""Engines over tiny models without a tokenizer, and the naive reference with the parameters of the API."""

from dataclasses import replace
from functools import cache

import torch

from paceline.api import Engine, Loaded, SamplingParams
from paceline.engine.runner import Runner
from tests import reference, tiny
from tests.engine.wrapped import Wrapped
from tests.harness import tiny_drafter

LONG = [7, 3, 5, 60, 2, 2, 9, 41, 8, 8, 13, 30, 1, 0, 5, 5, 17, 22, 6, 4]  # longer than the shortest shared prefix


def bare(lm=None, *, eos=()):
    """The tiny target, or another LM, as a ``Loaded`` without tokenizer."""
    lm = lm or tiny.target()[1]
    return Loaded(lm=lm, tokenizer=None, eos=eos, name="tiny", dtype=torch.float64, config={})


def engine(drafter="none", verifier="coupled", *, target=None, **options):
    """An engine over ``target``; ``drafter`` is a registered name or an instance."""
    target = target or bare()
    lm = target.lm.lm if isinstance(target.lm, Wrapped) else target.lm
    given = tiny_drafter(drafter, lm) if isinstance(drafter, str) else drafter
    return Engine(target, drafter=given, verifier=verifier, **{"num_draft_tokens": 3, "max_length": 96, **options})


def read_by(monkeypatch, reader):
    """Make every engine's runner use ``reader``, a class of engine.readers."""

    def runner_for(decoder, *, eager=False):
        return Runner(decoder, reader=reader(decoder))

    monkeypatch.setattr("paceline.api.engine.runner_for", runner_for)


class Banned:
    """A transformers model that bans ``tokens`` until its sequence has ``until`` tokens."""

    def __init__(self, model, tokens, until):
        self.model, self.tokens, self.until = model, list(tokens), until

    def __call__(self, text):
        output = self.model(text)
        if text.shape[1] < self.until:
            output.logits[..., self.tokens] = -torch.inf
        return output


def naive(prompt, params, seed, model=None, eos=()):
    """The tokens of plain decoding after ``prompt``, with ``params`` and a sample's ``seed``."""
    model = model or tiny.target()[0]
    return list(_naive(tuple(prompt), replace(params, seed=0, n=1, logprobs=None), seed, model, tuple(eos)))


@cache
def _naive(prompt, params, seed, model, eos):
    stop = tuple(dict.fromkeys((*params.stop_tokens, *(() if params.ignore_eos else eos))))
    if stop and params.min_tokens:
        model = Banned(model, stop, len(prompt) + params.min_tokens)
    return reference.decode(
        model,
        list(prompt),
        max_tokens=params.max_tokens,
        stop=stop,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=seed,
    )


def greedy(**options):
    return SamplingParams(temperature=0.0, **options)
