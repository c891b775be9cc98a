"""``--backend``: who runs the model of a command, by the names of ``paceline.load``."""

import json

import pytest

from paceline.api.loading import BACKENDS, load
from paceline.cli import run
from paceline.cli.options import BACKEND_NAMES
from paceline.models.adapter.lm import TransformersLM
from paceline.models.native.decoder import DecoderLM
from tests.api.checkpoints import pair
from tests.cli.files import generate_file, lines_of, write

COMMANDS = {
    "generate": ["generate", "--model", str(pair().target), "--max-tokens", "8", "--json", "def add("],
    "score": ["score", "--model", str(pair().target), "--json", "def add(", "first, second):"],
}


def test_the_names_are_those_of_load():
    assert BACKEND_NAMES == BACKENDS


@pytest.fixture
def loaded(monkeypatch):
    """The kinds of what commands load."""
    kinds = []

    def telling(model, **options):
        found = load(model, **options)
        kinds.append(type(found.lm))
        return found

    monkeypatch.setattr("paceline.api.load", telling)
    return kinds


@pytest.mark.parametrize("name", COMMANDS)
def test_each_backend_gives_what_the_other_gives(name, loaded, capsys):
    printed = []
    for backend in ("auto", "native", "hf"):
        assert run([*COMMANDS[name], "--backend", backend]) == 0
        printed.append(json.loads(capsys.readouterr().out))
    assert loaded == [DecoderLM, DecoderLM, TransformersLM]
    key = "tokens"
    assert printed[0][key] == printed[1][key] == printed[2][key]


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_backend_is_refused_before_anything_is_loaded(name, loaded, capsys):
    assert run([*COMMANDS[name], "--backend", "vllm"]) == 2
    assert "paceline: --backend vllm: known are auto, native, hf" in capsys.readouterr().err
    assert not loaded


def test_prompts_of_a_file_go_through_it_too(loaded, tmp_path):
    prompts, output = write(tmp_path / "p.txt", ["def add(", "import os"]), tmp_path / "out.jsonl"
    assert generate_file(prompts, output, "--backend", "hf", "--drafter", "ngram") == 0
    assert loaded == [TransformersLM] and len(lines_of(output)) == 2


def test_a_benchmark_times_the_backend_that_was_asked_for(loaded, tmp_path, capsys):
    raw = tmp_path / "bench.jsonl"
    words = ["bench", "--target", str(pair().target), "--drafter", "ngram", "--k", "2", "--max-tokens", "4"]
    words += ["--num-prompts", "1", "--repeats", "1", "--attempts", "1", "--output", str(raw), "--quiet"]
    assert run([*words, "--backend", "vllm"]) == 2
    assert "--backend vllm: known are auto, native, hf" in capsys.readouterr().err
    for backend in ("native", "hf"):
        assert run([*words, "--backend", backend]) == 0
    assert loaded == [DecoderLM, TransformersLM]
    conditions = [line["conditions"] for line in map(json.loads, raw.read_text().splitlines()) if "conditions" in line]
    assert [one["backend"] for one in conditions] == ["native", "hf"]
