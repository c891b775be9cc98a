"""Studies by the command line: all ways write the same, figures are kept, and what cannot be measured is refused."""

import json
from dataclasses import replace
from importlib import import_module
from itertools import count

import pytest

from benchmarks.batched.lock_step import LockStep
from paceline.drafters.early_exit import EarlyExitDrafter
from tests.api.checkpoints import pair, without_tokenizer
from tests.benchmarks.command import run


@pytest.fixture(autouse=True)
def ticking(monkeypatch):
    """Nothing depends on the machine: everything takes a second."""
    for name in ("resume", "batched.study"):
        module = import_module(f"benchmarks.{name}")
        monkeypatch.setattr(module, "time_in_turn", by_ticks(module.time_in_turn))
    monkeypatch.setattr(import_module("benchmarks.study"), "hash_source", lambda: "unchanged")


def by_ticks(timer):
    return lambda *given, **options: timer(*given, **{**options, "clock": count().__next__})


def study(output, *options, exits="1,2"):
    small = ("--exit", exits, "--batch", "1,3", "--context", "9", "--k", 2, "--num-steps", 3, "--dtype", "float64")
    return run("resume", "--target", pair().target, *small, "--output", output, *options)


def rows_study(output, *options):
    small = ("--batch", "1,2", "--k", 2, "--suite", "prose", "--num-prompts", 2, "--max-tokens", 9, "--repeats", 3)
    pairs = ("--target", pair().target, "--draft", pair().draft, "--dtype", "float64")
    return run("batched", *pairs, *small, "--output", output, *options)


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
    right = EarlyExitDrafter._resumable

    def wrong(self, grown, leading):
        tree = right(self, grown, leading)
        tree.resume.hidden.mul_(-1)
        return tree

    monkeypatch.setattr(EarlyExitDrafter, "_resumable", wrong)
    with pytest.raises(RuntimeError, match="wrote different tokens"):
        study(tmp_path / "resume.jsonl")
    assert not [line for line in lines_of(tmp_path / "resume.jsonl") if line["kind"] == "resume"]


def test_bad_input_is_one_line(tmp_path, capsys):
    output = tmp_path / "resume.jsonl"
    for options, said in (
        (("--k", "0"), "num_draft_tokens=0: give at least 1"),
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


def test_every_batch_is_decoded_in_all_modes_and_shown(tmp_path, capsys):
    output = tmp_path / "batched.jsonl"
    assert rows_study(output) == 0
    cells = [line for line in lines_of(output) if line["kind"] == "batched"]
    assert [(c["cell"]["runtime"], c["cell"]["num_rows"]) for c in cells] == [
        ("eager", 1),
        ("eager", 2),
        ("kernel", 1),
        ("kernel", 2),
    ]
    for cell in cells:
        ways = cell["ways"]
        assert ("realigned" in ways) == (cell["cell"]["runtime"] == "eager")
        assert all(way["same"] == 3 * cell["cell"]["num_rows"] for way in ways.values())
        assert all(way["seconds"] == [1, 1, 1] and len(way["num_steps"]) == 3 for way in ways.values())
        alone, locked = ways["per row"], ways["lock-step"]
        assert alone["summary"]["emitted"] == locked["summary"]["emitted"] == 27 * cell["cell"]["num_rows"]
        assert locked["summary"]["steps"] >= alone["summary"]["steps"]
    assert output.with_suffix(".svg").read_text().startswith("<svg")
    before = output.read_bytes()
    capsys.readouterr()
    assert rows_study(output) == 0 and rows_study(output, "--report") == 0
    assert output.read_bytes() == before
    out = capsys.readouterr().out
    assert "eager, k = 2" in out and "kernel, k = 2" in out and "1.000 [1.000, 1.000]" in out
    assert "100% 100%" in out, "outputs of both other modes"


def test_a_cell_that_is_measured_again_stands_once(tmp_path, capsys):
    one = ("--runtime", "eager", "--batch", "1", "--repeats", "1")
    output = tmp_path / "batched.jsonl"
    assert rows_study(output, *one) == 0
    kept = lines_of(output)
    output.write_text("".join(json.dumps({**line, "void": True}) + "\n" for line in kept))
    capsys.readouterr()
    assert rows_study(output, "--report") == 0
    assert capsys.readouterr().out.count("1.000 (void)") == 1
    assert rows_study(output, *one) == 0
    out = capsys.readouterr().out
    assert len(lines_of(output)) == len(kept) + 1 and "1.000 (void)" not in out


def test_outputs_that_differ_by_the_kernel_are_a_fault_and_no_figure(tmp_path, monkeypatch):
    """As when a row that is cut goes on with what it would have said at the end of its draft."""
    right = LockStep.__call__

    def wrong(self, tree, logits, batch):
        outcome = right(self, tree, logits, batch)
        return replace(outcome, next=outcome.picks[:, -1])

    monkeypatch.setattr(LockStep, "__call__", wrong)
    with pytest.raises(RuntimeError, match="wrote different tokens"):
        rows_study(tmp_path / "batched.jsonl", "--runtime", "kernel")
    assert not [line for line in lines_of(tmp_path / "batched.jsonl") if line["kind"] == "batched"]


def test_bad_input_of_the_rows_study_is_one_line(tmp_path, capsys):
    output = tmp_path / "batched.jsonl"
    for options, said in (
        (("--k", "0"), "k=0: give at least 1"),
        (("--repeats", "0"), "repeats=0: give at least 1"),
        (("--max-tokens", "0"), "max_tokens=0: give at least 1"),
        (("--batch", "3"), "2 prompts and batch size 3"),
        (("--runtime", "gpu"), "known are eager, kernel"),
        (("--max-tokens", "600"), "context of 512"),
        (("--report",), "holds no figures of this study"),
    ):
        assert rows_study(output, *options) == 2
        assert said in capsys.readouterr().err
    assert run("batched", "--target", pair().target, "--output", output) == 2
    assert "give both" in capsys.readouterr().err
