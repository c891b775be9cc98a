import io
import json
import subprocess
import sys

import pytest
import torch

from paceline import __version__
from paceline.api import SamplingParams, generate, load
from paceline.cli import run
from paceline.decode import Decoder
from tests.api.checkpoints import CONTEXT, other_vocabulary, pair, without_tokenizer

PROMPT = "def add(first,"


def command(*arguments, model=None, prompt=PROMPT):
    return ["generate", "--model", str(model or pair().target), *map(str, arguments), prompt]


@pytest.fixture(scope="module")
def expected():
    return generate(load(pair().target), PROMPT, SamplingParams(max_tokens=24, temperature=0.0))[0]


@pytest.mark.parametrize("drafter", ["", "--drafter ngram", "--draft DRAFT", "--draft DRAFT --drafter model"])
def test_text_does_not_depend_on_the_drafter_and_is_all_there_is(drafter, expected, capsys):
    drafter = [str(pair().draft) if word == "DRAFT" else word for word in drafter.split()]
    assert run(command("--max-tokens", 24, *drafter)) == 0
    captured = capsys.readouterr()
    assert captured.out == expected.text + "\n"
    assert captured.err == ""


def test_json_holds_the_whole_result(expected, capsys):
    assert run(command("--max-tokens", 24, "--draft", pair().draft, "--num-draft-tokens", 3, "--json")) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["text"] == expected.text
    assert printed["tokens"] == list(expected.tokens)
    assert printed["prompt_tokens"] == list(expected.prompt_tokens)
    assert printed["finish_reason"] == "length"
    assert len(printed["source"]) == 24 and set(printed["source"]) >= {"drafted", "corrected"}
    assert len(printed["stats"]["drafted"]) == 3
    assert printed["stats"]["acceptance_rate"] > 0.3 and printed["stats"]["emitted"] == 24


def test_sampling_options_reach_the_target(capsys):
    options = dict(temperature=0.9, top_k=30, top_p=0.8, min_p=0.01, seed=5)
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    for verifier in ("coupled", "rejection"):
        assert run(command("--json", "--verifier", verifier, "--draft", pair().draft, "--max-tokens", 24, *words)) == 0
        tokens = json.loads(capsys.readouterr().out)["tokens"]
        target = load(pair().target)
        params = SamplingParams(max_tokens=24, **options)
        same = generate(target, PROMPT, params, drafter=pair().draft, verifier=verifier)
        assert tokens == list(same[0].tokens)


def test_dash_reads_the_prompt_from_standard_input(expected, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(PROMPT))
    assert run(command("--max-tokens", 24, prompt="-")) == 0
    assert capsys.readouterr().out == expected.text + "\n"


@pytest.mark.parametrize("form", ["text", "json"])
def test_interruption_prints_what_was_generated(form, expected, capsys, monkeypatch):
    steps = []

    def interrupted(self, step=Decoder.step):
        steps.append(1)
        if len(steps) == 4:
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr(Decoder, "step", interrupted)
    assert run(command("--max-tokens", 24, "--draft", pair().draft, *(["--json"] if form == "json" else []))) == 130
    printed = capsys.readouterr().out
    if form == "json":
        printed = json.loads(printed)
        assert printed["finish_reason"] == "cancelled"
        assert 3 <= len(printed["tokens"]) < 24
        assert printed["tokens"] == list(expected.tokens[: len(printed["tokens"])])
    else:
        assert len(printed) > 3 and expected.text.startswith(printed[:-1]) and printed != expected.text + "\n"


REFUSED = {
    "no prompt": (["generate", "--model", "TARGET"], "Missing argument"),
    "no model": (["generate", "x"], "Missing option"),
    "unknown option": (command("--speed", "9"), "No such option: --speed"),
    "no such command": (["summon"], "No such command"),
    "no such file": (command(model="/nowhere/at/all"), "no such model directory: /nowhere/at/all"),
    "not a model": (command(model="ROOT"), "not a model: "),
    "no number": (command("--seed", "x"), "Invalid value for '--seed'"),
    "unknown drafter": (command("--drafter", "oracle"), "unknown drafter 'oracle'"),
    "drafter without its model": (command("--drafter", "model"), "needs a draft model"),
    "two drafters": (command("--drafter", "ngram", "--draft", "DRAFT"), "--drafter ngram and --draft"),
    "unknown verifier": (command("--verifier", "maybe"), "unknown verifier 'maybe'; known: coupled, rejection"),
    "unknown dtype": (command("--dtype", "int3"), "unknown dtype 'int3'; known: float64, float32"),
    "cold": (command("--temperature", "-1"), "temperature=-1.0: give a finite number of at least 0"),
    "top-k": (command("--top-k", "-2"), "top_k=-2: give 0 (off)"),
    "top-p": (command("--top-p", "1.5"), "top_p=1.5: give a number above 0 and at most 1"),
    "min-p": (command("--min-p", "2"), "min_p=2.0: give a number from 0"),
    "seed": (command("--seed", "-4"), "seed=-4: give an integer from 0"),
    "draft length": (command("--num-draft-tokens", "-2"), "num_draft_tokens=-2: give 0"),
    "no tokens": (command("--max-tokens", "0"), "max_tokens=0: give at least 1"),
    "too many tokens": (command("--max-tokens", "99999"), f"exceed the limit of {CONTEXT} tokens; shorten the prompt"),
    "empty prompt": (command(prompt=""), "empty prompt"),
    "vocabulary": (command("--draft", "OTHER"), "(297 tokens) and draft"),
    "no tokenizer": (command(model="BARE"), "put tokenizer.json beside config.json"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_clear_line_and_exit_code_two(case, tmp_path, capsys):
    arguments, message = REFUSED[case]
    places = {"TARGET": pair().target, "DRAFT": pair().draft, "ROOT": pair().root}
    if "OTHER" in arguments:
        places["OTHER"] = other_vocabulary(tmp_path / "other")
    if "BARE" in arguments:
        places["BARE"] = without_tokenizer(tmp_path / "bare")
    assert run([str(places.get(word, word)) for word in arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("paceline: ") and captured.err.count("\n") == 1
    assert captured.out == ""


def test_version_is_printed(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"paceline {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["demo", "--help"], ["generate", "-h"]])
def test_help_teaches_by_examples(arguments, capsys):
    assert run(arguments) == 0
    name = arguments[0] if arguments and not arguments[0].startswith("-") else "demo"
    assert f"\n  paceline {name}" in capsys.readouterr().out


def test_help_loads_neither_torch_nor_transformers():
    code = (
        "import sys, paceline.cli; paceline.cli.run(['generate', '--help']); "
        "print([m for m in ('torch', 'transformers', 'tokenizers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_console_script_exits_with_the_code():
    done = subprocess.run([sys.executable, "-m", "paceline.cli", "generate", "x"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_dtype_is_used(capsys, monkeypatch):
    seen = []
    monkeypatch.setattr("paceline.cli.generate.load", lambda path, dtype: seen.append(dtype) or load(path, dtype=dtype))
    assert run(command("--dtype", "float32", "--max-tokens", 2)) == 0
    assert run(command("--max-tokens", 2)) == 0
    assert seen == [torch.float32, None]
