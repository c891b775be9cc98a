"""paceline audit: what it prints, what it returns, what it refuses."""

import json

import pytest

from paceline.audit import model as auditing
from paceline.cli import run
from tests.api.checkpoints import pair

WORDS = ["audit", str(pair().target), "--num-tokens", "300", "--text-length", "20", "--dtype", "bfloat16"]


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr("paceline.audit.prompts.DEFAULT_PROMPTS", ("def add(", "for item", "return"))


def test_a_sound_model_passes_and_every_check_has_a_line(capsys):
    assert run([*WORDS, "--draft", str(pair().draft)]) == 0
    out = capsys.readouterr().out
    for line in (
        "greedy outputs equal to plain decoding",
        "3 of 3",
        "surprisal of 300",
        "first tokens accepted",
        "all tests passed",
    ):
        assert line in out


def test_json_has_the_figures(capsys):
    assert run([*WORDS, "--drafter", "ngram", "--verifier", "rejection", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["failures"] == [] and found["goodness_of_fit"]["num_tokens"] == 300
    assert found["sampled"] is None and found["acceptance"] is None and found["bitwise"] is False


def test_wrong_distribution_is_reported_with_exit_code_1(capsys, monkeypatch):
    real = auditing.result_probs
    monkeypatch.setattr(auditing, "result_probs", lambda lm, result: (0.3 * real(lm, result).log()).softmax(-1))
    assert run([*WORDS, "--draft", str(pair().draft)]) == 1
    assert "FAILED: sampled tokens do not follow the target's distribution" in capsys.readouterr().out


def test_wrong_words_are_refused(capsys):
    assert run([*WORDS, "--draft", str(pair().draft), "--drafter", "ngram"]) == 2
    assert "give one of them" in capsys.readouterr().err
    assert run([*WORDS[:2], "--num-tokens", "0"]) == 2
    assert "give at least 1" in capsys.readouterr().err
