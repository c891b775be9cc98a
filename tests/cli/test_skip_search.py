"""The command that searches for sub-layers to skip."""

import importlib.util
import json
import shutil

import pytest

from paceline.bench.skip_study import SkipStudy
from paceline.cli import run
from tests.api.checkpoints import pair


@pytest.fixture
def target(tmp_path):
    """A directory that may be written to."""
    return shutil.copytree(pair().target, tmp_path / "target")


@pytest.fixture
def command(tmp_path, target):
    """The command's words with few and short prompts."""
    (tmp_path / "prompts.txt").write_text("def add(first,\nfor item in\n")
    options = ["--trials", 4, "--max-tokens", 8, "--num-draft-tokens", 2]
    return ["skip-search", str(target), "--prompts", str(tmp_path / "prompts.txt"), *map(str, options)]


def trials_of(target):
    lines = (target / "paceline_layer_skip.trials.jsonl").read_text().splitlines()
    return [line for line in lines if json.loads(line)["kind"] == "skip-trial"]


def test_the_set_is_written_where_the_drafter_finds_it(command, target, capsys):
    assert run(command) == 0
    printed = capsys.readouterr().out
    found = json.loads((target / "paceline_layer_skip.json").read_text())
    assert len(trials_of(target)) == 4 and found["num_draft_tokens"] == 2
    assert "on prompts that the search did not see" in printed and "tokens per step" in printed
    assert ("It does not pay here" in printed) is not found["measured"]["pays"]
    assert f"next       paceline generate --model {target} --drafter layer_skip " in printed
    outputs = []
    for options in ([], ["--drafter", "layer_skip"]):
        assert (
            run(["generate", "--model", str(target), *options, "--temperature", "0", "--max-tokens", "20", "def"]) == 0
        )
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


def test_more_trials_keep_those_that_there_are(command, target, capsys):
    assert run([*command, "--json"]) == 0
    first = trials_of(target)
    assert run([*command, "--json", "--trials", "6"]) == 0
    second = trials_of(target)
    assert second[:4] == first and len(second) == 6
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["num_trials"] == 6


def test_an_interrupted_search_goes_on(command, target, capsys, monkeypatch):
    tell, written = SkipStudy.tell, []

    def interrupt(self, asked, trial):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(trial)
        tell(self, asked, trial)

    with monkeypatch.context() as patch:
        patch.setattr(SkipStudy, "tell", interrupt)
        assert run(command) == 130
    assert "stopped after 2 of 4 trials, which are in" in " ".join(capsys.readouterr().err.split())
    assert not (target / "paceline_layer_skip.json").exists()
    kept = trials_of(target)
    assert run(command) == 0
    assert trials_of(target)[:2] == kept and len(trials_of(target)) == 4


def test_the_set_goes_to_the_output_that_is_named(command, target, tmp_path, capsys):
    output = tmp_path / "set.json"
    assert run([*command, "--output", str(output)]) == 0
    assert json.loads(output.read_text())["kind"] == "paceline_layer_skip"
    assert (tmp_path / "set.trials.jsonl").is_file() and not (target / "paceline_layer_skip.json").exists()
    assert f"--drafter layer_skip:{output} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trials", "0"], "--trials 0: give at least 1"),
        (["--num-draft-tokens", "0"], "--num-draft-tokens 0: give at least 1"),
        (["--output", "no/where/x.json"], "no such directory: no/where"),
        (["--backend", "hf"], "run by transformers"),
        (["--max-tokens", "600"], "leave the target's context"),
    ],
)
def test_what_cannot_be_searched_is_refused(command, options, message, capsys):
    assert run([*command, *options]) == 2
    assert message in capsys.readouterr().err


def test_without_optuna_it_says_what_to_install(command, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "paceline.cli.commands.skip_search.find_spec", lambda name: None if name == "optuna" else find(name)
    )
    assert run(command) == 2
    assert "skip-search needs optuna: run pip install 'paceline[search]'" in capsys.readouterr().err
