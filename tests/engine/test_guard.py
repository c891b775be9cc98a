"""A drafter that fails never costs a token."""

import logging

import pytest
import torch

from paceline.api import Engine, Loaded, SamplingParams
from paceline.core.tree import Draw
from paceline.drafters.base import Drafter
from paceline.drafters.ngram import NgramDrafter
from paceline.engine.runner import HOW_TO_SEE
from tests import tiny
from tests.harness import expected, request

PROMPTS = [[5, 9, 2], [1], [8] * 6, [17, 4, 33, 17, 4]]


class Failing(Drafter):
    """Copies, as prompt lookup does, until one of its methods raises at its ``last`` call."""

    origins = ("failing",)
    draws = frozenset({Draw.FIXED})

    def __init__(self, where, last):
        self.inner, self.where, self.left = NgramDrafter(), where, last

    def start(self, context):
        self.inner.start(context)

    def _maybe(self, where):
        if where == self.where:
            self.left -= 1
            if self.left == 0:
                raise RuntimeError("out of luck")

    def prefill(self, batch, admission, hidden):
        self._maybe("prefill")

    def propose(self, batch, plan):
        self._maybe("propose")
        return self.inner.propose(batch, plan)

    def observe(self, batch, tree, outcome, hidden):
        self._maybe("observe")


def target():
    lm = tiny.target()[1]
    return Loaded(lm=lm, tokenizer=None, eos=(), name="tiny", dtype=torch.float64, config={})


@pytest.mark.parametrize("where", ["prefill", "propose", "observe"])
@pytest.mark.parametrize("last", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_failing_drafter_costs_no_token_and_says_why(where, last, temperature, caplog):
    engine = Engine(target(), drafter=Failing(where, last), num_draft_tokens=5, batch_size=1, max_length=96)
    with caplog.at_level(logging.ERROR, logger="paceline"):
        results = engine.generate(PROMPTS, SamplingParams(temperature=temperature, max_tokens=20, seed=3))
    for result in results:
        sampling = dict(temperature=temperature, seed=result.seed)
        assert list(result.tokens) == expected(request(list(result.prompt_tokens), max_tokens=20, **sampling))
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        f"Failing failed, decoding goes on without drafts: RuntimeError: out of luck ({HOW_TO_SEE})"
    ]
    assert results[-1].stats.no_draft == {"the drafter failed": results[-1].stats.steps}


def test_a_drafter_that_cannot_start_is_refused(monkeypatch):
    drafter = Failing("none", 1)
    monkeypatch.setattr(drafter, "start", lambda context: (_ for _ in ()).throw(ValueError("wrong target")))
    with pytest.raises(ValueError, match="wrong target"):
        Engine(target(), drafter=drafter, batch_size=1, max_length=96)
