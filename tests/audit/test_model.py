"""An audit passes a correct model, and names wrong distributions, tokens and acceptance rates."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from paceline.api import load
from paceline.audit import model as auditing
from paceline.audit.model import audit
from paceline.core.noise import Philox
from tests.api.checkpoints import pair

PROMPTS = [[3, 1, 4], [1, 5, 9, 2], [6], [2, 7, 1, 8]]


def run(target, draft, verifier, **changes):
    given = dict(num_draft_tokens=3, num_tokens=900, text_length=40, batch_size=4, seed=5, bitwise=True)
    given |= dict(on_progress=lambda _: None, **changes)
    return audit(target, PROMPTS, drafter=draft, verifier=verifier, **given)


@pytest.fixture(scope="module")
def models():
    return tuple(load(path, dtype="float32", device="cpu") for path in (pair().target, pair().draft))


@pytest.mark.parametrize("verifier", ["coupled", "rejection"])
def test_correct_model_passes(models, verifier):
    found = run(*models, verifier)
    assert found.failures == []
    assert found.goodness_of_fit.num_tokens == 960 and found.acceptance.count > 60
    if verifier == "coupled":
        assert (found.sampled.num_sequences, found.sampled.num_equal) == (4, 4) and found.bitwise
    else:
        assert found.sampled is None and not found.bitwise


def test_acceptance_is_skipped_without_a_draft_model(models):
    found = run(models[0], "ngram", "coupled")
    assert found.acceptance is None and found.failures == []


def test_acceptance_is_skipped_for_a_draft_of_some_tokens(models):
    """The closed form needs the draft's distribution over all of them."""
    found = run(models[0], replace(models[1], draft_ids=torch.arange(0, 320, 2)), "coupled")
    assert found.acceptance is None and found.failures == []
    assert found.greedy.mean_acceptance_length > 1.2


def test_wrong_distribution_is_named(models, monkeypatch):
    real = auditing.result_probs
    monkeypatch.setattr(auditing, "result_probs", lambda lm, result: (0.8 * real(lm, result).log()).softmax(-1))
    failures = run(*models, "coupled", num_tokens=3000).failures
    assert "sampled tokens do not follow the target's distribution" in failures


def test_different_tokens_are_named(models, monkeypatch):
    real = auditing.generate

    def changed(target, prompts, params, **options):
        results = real(target, prompts, params, **options)
        if options.get("drafter") is None:
            return results
        return [replace(results[0], token_ids=(*results[0].token_ids[:-1], 0)), *results[1:]]

    monkeypatch.setattr(auditing, "generate", changed)
    assert run(*models, "coupled").failures[:1] == ["1 sampled sequences differ from plain decoding"]


def test_low_acceptance_is_named(models, monkeypatch):
    real = Philox.coin
    monkeypatch.setattr(Philox, "coin", lambda self, p, q, key: real(self, 0.7 * p, q, key))
    failures = run(*models, "rejection").failures
    assert "the acceptance rate is not the one that the verifier has for these distributions" in failures


def test_counts_are_checked(models):
    with pytest.raises(ValueError, match="0 tokens in texts of 40: give at least 1"):
        run(*models, "coupled", num_tokens=0)


def test_missing_extra_is_named_with_the_way_out():
    code = (
        "import importlib.util as util; real = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'scipy' else real(name, *rest)\n"
        "try: import paceline.audit\n"
        "except ValueError as error: print(error)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "paceline audit needs scipy, not installed here: run pip install 'paceline[audit]'\n"
