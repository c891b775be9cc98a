"""Drafters in files of users, on the command line."""

import json

import pytest

from paceline.cli import run
from tests.api.checkpoints import pair
from tests.api.drafter_file import written


@pytest.fixture
def folder(tmp_path):
    with written(tmp_path):
        yield tmp_path


WORDS = ("--max-tokens", "12", "--json", "def f(")


def test_command_line_takes_a_drafter_in_a_file(folder, capsys):
    command = ["generate", "--model", str(pair().target), *WORDS]
    assert run(command) == 0
    plain = json.loads(capsys.readouterr().out)
    assert run([*command, "--num-draft-tokens", "3", "--drafter", f"{folder}/own.py:Repeat:period=1"]) == 0
    drafted = json.loads(capsys.readouterr().out)
    assert drafted["tokens"] == plain["tokens"] and sum(drafted["stats"]["drafted"]) > 0


@pytest.mark.parametrize("words", [["generate", "--drafter"], ["audit", "--drafter"], ["advise", "--draft"]])
def test_wrong_file_is_refused_before_a_model_is_loaded(words, folder, capsys, monkeypatch):
    monkeypatch.setattr("paceline.api.load", None)  # any work would call it
    command, option = words
    model = ["--model", "nowhere"] if command == "generate" else ["nowhere"]
    assert run([command, *model, option, f"{folder}/own.py:Reapeat"]) == 2
    assert "no 'Reapeat' in" in capsys.readouterr().err


def test_bench_takes_a_drafter_in_a_file(folder, capsys, tmp_path):
    own, raw = f"{folder}/own.py:Repeat", tmp_path / "raw.jsonl"
    words = ["--target", str(pair().target), "--output", str(raw), "--no-html", "--quiet", "--repeats", "2", "--k", "2"]
    words += ["--num-prompts", "1", "--max-tokens", "8", "--attempts", "1"]
    assert run(["bench", *words, "--drafter", own]) == 0
    assert "own.py:Repeat" in raw.read_text() and "drafter_files" in raw.read_text()
    assert run(["bench", *words, "--drafter", f"{folder}/own.py:Reapeat"]) == 2
    assert "no 'Reapeat' in" in capsys.readouterr().err
