"""paceline audit --url: what it prints, what it returns, what it refuses, and that no key is ever shown."""

import json

import pytest

from paceline.api import load
from paceline.cli import run
from tests.audit.character_model import PROMPTS, folder
from tests.audit.stub import Stub, altered, serving

KEY = "sk-secret-1234"
FEW = ["--num-tokens", "100", "--text-length", "16", "--dtype", "float32", "--enforce-eager", "--batch", "8"]


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr("paceline.audit.prompts.DEFAULT_PROMPTS", PROMPTS)


@pytest.fixture(scope="module")
def target():
    return load(folder(), dtype="float32", device="cpu", enforce_eager=True)


def audit(stub, *words):
    with serving(stub) as url:
        return run(["audit", str(folder()), "--url", url, *FEW, *words])


def test_correct_server_passes_and_every_check_has_a_line(target, capsys):
    assert audit(Stub(target=target)) == 0
    out = capsys.readouterr().out
    for line in (
        "prompts of as many tokens",
        "greedy outputs equal to the model's",
        "8 of 8",
        "same output for the same seed",
        "surprisal of 1",
        "Kolmogorov-Smirnov distance",
        "their log-probabilities, mean error",
        "token ids",
        "all tests passed",
    ):
        assert line in out
    assert "note" not in out and "FAILED" not in out


def test_wrong_distribution_is_reported_with_exit_code_1(target, capsys):
    stub = Stub(target=altered(target, lambda logits: 1.5 * logits), seeds=False, reports="nothing")
    assert audit(stub, "--num-tokens", "700") == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "FAILED: sampled tokens do not follow the reference's distribution" in out
    assert "note: 8 of 8 sampled completions differ when requested again with the same seed" in out
    assert "note: the server reports no token ids" in out


def test_json_has_the_figures_the_failures_and_the_notes(target, capsys):
    assert audit(Stub(target=target, shift=0.3), "--json", "--served-model", "the-model") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == "the-model" and found["goodness_of_fit"]["num_tokens"] >= 100
    assert found["failures"] == ["the server's logprobs differ from the reference's by more than 0.1"]
    assert (
        found["notes"] == [] and found["greedy"]["divergence_points"] == [] and found["asked"] == found["extra_fields"]
    )
    assert found["extra_fields"]["top_k"] == -1


def test_the_key_comes_from_the_environment_and_is_never_shown(target, capsys, monkeypatch):
    monkeypatch.setenv("PLACE_OF_THE_KEY", KEY)
    stub = Stub(target=target, key=KEY)
    assert audit(stub, "--api-key-env", "PLACE_OF_THE_KEY") == 0
    assert audit(stub) == 2
    monkeypatch.setenv("PLACE_OF_THE_KEY", f"{KEY}-old")
    assert audit(stub, "--api-key-env", "PLACE_OF_THE_KEY") == 2
    said = "".join(capsys.readouterr())
    assert "give --api-key-env VAR" in said and "(check the key)" in said and KEY not in said


REFUSED = {
    "a draft": (["--url", "http://x/v1", "--draft", "d"], "--draft and --url: the server chooses what drafts there"),
    "a drafter": (["--url", "http://x/v1", "--drafter", "ngram"], "--drafter and --url"),
    "a draft length": (["--url", "http://x/v1", "--num-draft-tokens", "3"], "--num-draft-tokens and --url"),
    "a verifier": (["--url", "http://x/v1", "--verifier", "rejection"], "--verifier and --url: the server chooses"),
    "a name": (["--served-model", "m"], "--served-model without --url: it is for servers, give --url too or leave"),
    "a key": (["--api-key-env", "KEY"], "--api-key-env without --url"),
    "a time": (["--timeout", "3"], "--timeout without --url"),
    "ties": (["--near-tie", "0.4"], "--near-tie without --url"),
    "no key": (
        ["--url", "http://x/v1", "--api-key-env", "NOWHERE_SET"],
        "--api-key-env NOWHERE_SET: this variable is not set; give the name of one that is",
    ),
    "no URL": (["--url", "localhost"], "--url localhost: give one like http://localhost:8000/v1"),
    "nobody": (["--url", "http://127.0.0.1:1/v1"], "nothing listens at http://127.0.0.1:1/v1"),
    "no tokens": (["--url", "http://x/v1", "--num-tokens", "0"], "0 tokens in texts of 128: give at least 1 token"),
    "no requests": (["--url", "http://x/v1", "--batch", "0"], "--batch-size 0: give at least 1"),
    "precision": (["--url", "http://x/v1", "--dtype", "int3"], "--dtype int3: known are"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_options_are_refused_before_loading(case, capsys, monkeypatch):
    words, message = REFUSED[case]
    monkeypatch.setattr("paceline.api.load", None)
    assert run(["audit", str(folder()), *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_server_of_another_model_is_refused(target, capsys):
    stub = Stub(target=target)
    assert audit(stub, "--served-model", "other") == 2
    assert "--served-model other:" in (error := capsys.readouterr().err) and "serves the-model; give one" in error
    stub.refuse = (400, {"error": {"message": "prompt is too long"}})
    assert audit(stub) == 2
    assert "/v1/completions answers 400: prompt is too long" in capsys.readouterr().err


def test_text_length_beyond_the_context_is_refused(target, capsys):
    stub = Stub(target=target)
    assert audit(stub, "--text-length", "9999") == 2
    assert "--text-length 9999 exceed the limit of 256 tokens; lower --text-length" in capsys.readouterr().err
    assert stub.requests == []
