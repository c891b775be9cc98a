"""Studies by the command line: both ways write the same, figures are kept, and what cannot be measured is refused."""

import json
from importlib import import_module
from itertools import count

import pytest

from paceline.cli import run
from paceline.drafters.early_exit import EarlyExitDrafter
from tests.api.checkpoints import pair, without_tokenizer


@pytest.fixture(autouse=True)
def ticking(monkeypatch):
    """Nothing depends on the machine: everything takes a second."""
    module = import_module("paceline.experiments.resume.measure")
    timer = module.time_in_turn
    monkeypatch.setattr(
        module, "time_in_turn", lambda *given, **options: timer(*given, **options, clock=count().__next__)
    )
    monkeypatch.setattr(import_module("paceline.cli.experiment"), "hash_source", lambda: "unchanged")


def study(output, *options, exits="1,2"):
    small = ("--exit", exits, "--batch", "1,3", "--context", "9", "--k", 2, "--num-steps", 3, "--dtype", "float64")
    words = ("experiment", "resume", "--target", pair().target, *small, "--output", output, *options)
    return run([str(word) for word in words])


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_cell_is_measured_once_and_shown(tmp_path, capsys):
    output = tmp_path / "resume.jsonl"
    assert study(output) == 0
    cells = [line for line in lines_of(output) if line["kind"] == "resume"]
    assert [(c["cell"]["num_rows"], c["cell"]["exit_layer"]) for c in cells] == [(1, 1), (1, 2), (3, 1), (3, 2)]
    assert all(len(seconds) == 3 for cell in cells for seconds in cell["seconds"].values())
    out = capsys.readouterr().out
    assert "1.000 [1.000, 1.000]" in out and "44%" in out, "two of three nodes skip two of three layers"
    assert output.with_suffix(".svg").read_text().startswith("<svg")
    before = output.read_bytes()
    assert study(output) == 0 and study(output, "--report") == 0
    assert output.read_bytes() == before


def test_two_ways_that_differ_are_a_fault_and_no_figure(tmp_path, monkeypatch):
    """As when the hidden states that verification goes on from are not the nodes' own."""
    right = EarlyExitDrafter._to_resume

    def wrong(self, grown, leading):
        tree = right(self, grown, leading)
        tree.resume.hidden.mul_(-1)
        return tree

    monkeypatch.setattr(EarlyExitDrafter, "_to_resume", wrong)
    with pytest.raises(RuntimeError, match="wrote different texts"):
        study(tmp_path / "resume.jsonl")
    assert not [line for line in lines_of(tmp_path / "resume.jsonl") if line["kind"] == "resume"]


def test_bad_input_is_one_line(tmp_path, capsys):
    output = tmp_path / "resume.jsonl"
    for options, said in (
        (("--k", "0"), "--k 0: give at least 1"),
        (("--num-steps", "0"), "num_steps=0: give at least 1"),
        (("--report",), "holds no figures of this study"),
    ):
        assert study(output, *options) == 2
        assert said in capsys.readouterr().err
    assert study(output, exits="3") == 2
    assert "exit_layer=3: the target has 3 layers" in capsys.readouterr().err
    short = without_tokenizer(tmp_path / "short", max_position_embeddings=12)
    assert study(output, "--target", short) == 2
    assert "context of 12" in capsys.readouterr().err
