"""The study of products by instruction set runs each set's kernel, and says what it measured."""

from pathlib import Path

import pytest

from benchmarks import instruction_sets as study
from benchmarks.__main__ import main as run
from benchmarks.instruction_sets import AGAIN, GREATEST, SUMS, Cell, growth, share, turns_of
from paceline.kernels.cpu.instruction_set import current_set, load_kernel

COMMITTED = Path(__file__).parents[2] / "docs" / "benchmarks"


@pytest.mark.parametrize("precision", study.PRECISIONS)
def test_every_precision_is_multiplied_by_the_kernel_of_its_set(precision, monkeypatch):
    loaded = []
    monkeypatch.setattr(
        "paceline.models.cpu.packed_weights.load_kernel", lambda isa: loaded.append(isa) or load_kernel(isa)
    )
    turns = turns_of(Cell(isa=current_set(), precision=precision), layers=1, rows=[1, 3, 12])
    # None: the layouts that its current library reads
    assert [isa for isa in loaded if isa is not None] == [current_set()] * len(study.SHAPES)
    assert list(turns.calls) == ["1", "3", AGAIN, "12", SUMS, GREATEST]
    outputs = turns.calls["3"]()
    assert [tuple(one.shape) for one in outputs] == [(3, shape[0]) for shape in study.SHAPES]
    assert all(one.isfinite().all() and one.abs().max() > 0.1 for one in outputs)
    weights = sum(outer * inner for outer, inner in study.SHAPES)
    size = turns.found({})["bytes"] / weights
    bytes_per_weight = {"bfloat16": 2, "float16": 2, "float32": 4, "int8": 1, "int4": 0.5 + 2 / 64}[precision]
    assert bytes_per_weight <= size < bytes_per_weight * 1.01


def test_figures_are_ratios_within_a_repeat():
    record = {"seconds": {"1": [1.0, 2.0], "4": [1.5, 3.0], SUMS: [0.9, 1.0], GREATEST: [0.5, 1.8]}}
    assert growth(record, 4).value == 1.5
    assert share(record).value == 0.5


def test_the_command_measures_continues_and_reports(tmp_path, capsys):
    output = tmp_path / "sets.jsonl"
    command = ["instruction-sets", "--output", str(output), "--isa", current_set(), "--dtype", "float32"]
    command += ["--layers", "1", "--rows", "1,2", "--repeats", "2", "--seconds", "0"]
    assert run(command) == 0
    said = capsys.readouterr().out
    assert current_set() in said and "float32" in said and "t(2)" in said
    before = output.read_text()
    assert run([*command, "--report"]) == 0 and output.read_text() == before
    assert "How many times as long" in output.with_suffix(".svg").read_text()


def test_the_picture_leaves_out_what_is_void_and_says_so(tmp_path):
    """Of the committed figures, in which the line of int8 on AVX2 is void."""
    output = tmp_path / "sets.jsonl"
    output.write_bytes((COMMITTED / "instruction-sets.jsonl").read_bytes())
    assert run(["instruction-sets", "--output", str(output), "--report"]) == 0
    picture = output.with_suffix(".svg").read_text()
    assert "Left out: 1 of 20 lines, which are void." in picture and picture.count("void") == 1
    assert picture.count("avx2, ") == 4 and "t(n) / t(1)" in picture and "prefers-color-scheme: dark" in picture


@pytest.mark.parametrize(
    "option, said",
    [(("--isa", "avx3"), "--isa avx3: not an instruction set"), (("--dtype", "int2"), "--dtype int2: known are bf")],
)
def test_unknown_sets_and_precisions_are_refused(option, said, tmp_path, capsys):
    assert run(["instruction-sets", "--output", str(tmp_path / "x.jsonl"), *option]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
