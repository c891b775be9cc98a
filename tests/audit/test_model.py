"""An audit passes what is right, and names what is broken: the law, the tokens, the acceptance."""

from dataclasses import replace

import pytest

from paceline.api import load
from paceline.audit import model as auditing
from paceline.audit.model import audit
from paceline.core.noise import Philox
from tests.api.checkpoints import pair

PROMPTS = [[3, 1, 4], [1, 5, 9, 2], [6], [2, 7, 1, 8]]


def run(target, draft, verifier, **changes):
    given = dict(num_draft_tokens=3, num_tokens=900, text_length=40, batch_size=4, seed=5, bitwise=True)
    return audit(target, PROMPTS, drafter=draft, verifier=verifier, tell=lambda _: None, **{**given, **changes})


@pytest.fixture(scope="module")
def models():
    return tuple(load(path, dtype="float32", device="cpu") for path in (pair().target, pair().draft))


@pytest.mark.parametrize("verifier", ["coupled", "rejection"])
def test_what_is_right_passes(models, verifier):
    found = run(*models, verifier)
    assert found.failures == []
    assert found.law.num_tokens == 960 and found.acceptance.count > 60
    if verifier == "coupled":
        assert (found.coupled.num_texts, found.coupled.num_equal) == (4, 4) and found.bitwise
    else:
        assert found.coupled is None and not found.bitwise


def test_without_a_draft_model_acceptance_has_no_closed_form(models):
    found = run(models[0], "ngram", "coupled")
    assert found.acceptance is None and found.failures == []


def test_a_wrong_law_is_named(models, monkeypatch):
    real = auditing.laws_of
    monkeypatch.setattr(auditing, "laws_of", lambda lm, result: (0.8 * real(lm, result).log()).softmax(-1))
    assert "sampled tokens do not have the target's law" in run(*models, "coupled", num_tokens=3000).failures


def test_texts_that_differ_are_named(models, monkeypatch):
    real = auditing.generate

    def other(target, prompts, params, **options):
        results = real(target, prompts, params, **options)
        if options.get("drafter") is None:
            return results
        return [replace(results[0], tokens=(*results[0].tokens[:-1], 0)), *results[1:]]

    monkeypatch.setattr(auditing, "generate", other)
    assert run(*models, "coupled").failures[:1] == ["1 sampled texts differ from plain decoding"]


def test_acceptance_that_is_too_low_is_named(models, monkeypatch):
    real = Philox.coin
    monkeypatch.setattr(Philox, "coin", lambda self, p, q, key: real(self, 0.7 * p, q, key))
    assert "acceptance is not what the rule gives for these laws" in run(*models, "rejection").failures


def test_counts_are_checked(models):
    with pytest.raises(ValueError, match="0 tokens in texts of 40: give at least 1"):
        run(*models, "coupled", num_tokens=0)
