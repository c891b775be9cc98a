"""A target whose logits are not finite ends the request that met them, and no other."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from paceline.api import SamplingParams
from tests import tiny
from tests.api.engines import bare, engine, greedy
from tests.engine.wrapped import Wrapped
from tests.harness import expected, request

OTHER, NUM = [5, 9, 2], 12


def broken_target():
    """The tiny target with a token that it cannot read, a prompt that leads to it, and after how many tokens."""
    lm = copy.deepcopy(tiny.target()[1])
    tokens = expected(request(OTHER, max_tokens=NUM))
    for prompt in ([7, 3], [1], [17, 4, 33], [60]):
        found = expected(request(prompt, max_tokens=NUM))
        poison = found[3]
        if poison not in (*tokens, *OTHER, *prompt, *found[:3]):
            break
    else:
        raise AssertionError("no prompt leads to a token of its own")
    with torch.no_grad():
        lm.embed.weight[poison] = math.nan
    return lm, prompt


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_a_request_that_meets_nan_ends_with_an_error_and_the_others_go_on(eager, drafter):
    lm, prompt = broken_target()
    made = engine(drafter, target=replace(bare(lm), enforce_eager=eager), batch_size=2)
    failed, other = made.generate([prompt, OTHER], greedy(max_tokens=NUM))
    assert "after 4 tokens: the target's logits hold NaN or infinity" in failed.error
    assert list(failed.tokens) == expected(request(prompt, max_tokens=4))
    assert other.error is None and list(other.tokens) == expected(request(OTHER, max_tokens=NUM))
    again = made.generate([OTHER] * 2, greedy(max_tokens=NUM))  # in the same rows, over what was left there
    assert [list(one.tokens) for one in again] == [list(other.tokens)] * 2


class Odd(Wrapped):
    """A language model whose logits of ``tokens`` are ``value``."""

    def __init__(self, lm, tokens, value):
        super().__init__(lm)
        self.tokens, self.value = tokens, value

    def __call__(self, *arguments, **options):
        output = self.lm(*arguments, **options)
        if output.logits is not None:
            output.logits[..., self.tokens] = self.value
        return output


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(
    ("tokens", "value", "fails"),
    [
        ([3], math.nan, True),
        ([3], math.inf, True),
        (slice(None), -math.inf, True),
        (slice(1, None), -math.inf, False),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_logit_is_enough_and_excluded_tokens_are_none(eager, tokens, value, fails, temperature):
    target = replace(bare(Odd(tiny.target()[1], tokens, value)), enforce_eager=eager)
    (result,) = engine(target=target, batch_size=1).generate(
        [OTHER], SamplingParams(max_tokens=3, temperature=temperature, seed=0)
    )
    assert (result.error is not None) == fails
    assert result.tokens == (() if fails else (0, 0, 0))
