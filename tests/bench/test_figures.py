from dataclasses import replace

import pytest

from paceline.bench.figures import best, break_evens, figures_of, grid
from paceline.bench.raw import RawFile
from paceline.bench.sweep import Axes, Protocols, run_sweep
from tests.bench.scripted import TOKENS, Bench

CONDITIONS = {"dtype": "float32", "suite": "code", "target": {"name": "<b>bold</b> & http://example.org/x"}}
AXES = Axes(
    drafters=["ngram", "<script>"], num_draft_tokens=[1, 2], batch_sizes=[1, 4], temperatures=[0], max_tokens=[8, 16]
)


def measure(folder, bench=None, axes=AXES, name="raw.jsonl"):
    bench, raw = bench or Bench(), RawFile(folder / name)
    run_sweep(
        axes.cells(),
        workbench=bench,
        raw=raw,
        conditions=CONDITIONS,
        notes={"date": "today"},
        protocol=Protocols(repeats=3, attempts=1),
        clock=bench.clock,
    )
    return raw


def one(folder, bench=None):
    axes = Axes(drafters=["ngram"], num_draft_tokens=[2], batch_sizes=[1], temperatures=[0], max_tokens=[4])
    (line,) = figures_of(measure(folder, bench, axes).records)
    return line


def test_figures_follow_from_the_raw_numbers(tmp_path):
    line = one(tmp_path)
    assert (line.speedup.value, line.speedup.low, line.speedup.high, line.control) == (2, 2, 2, 1)
    assert (line.tokens_per_second, line.base_tokens_per_second) == (8, 4)
    assert line.tokens_per_step == 8 / 5 and line.accepted_per_step == 3 / 5
    assert line.acceptance == 3 / 10 and line.by_position == (3 / 5, 0)
    assert line.step_seconds == pytest.approx((0.02, 0.12, 0.01, 0.01))
    assert line.base_step_seconds == pytest.approx((0, 0.1, 0, 0.025))
    assert line.ideal == pytest.approx(1.6 / 1.2) and line.efficiency == pytest.approx(2 / (1.6 / 1.2))
    assert (len(line.texts), line.num_looping, line.differences) == (2, 0, [])


def test_looping_texts_count_for_speed_but_not_for_acceptance(tmp_path):
    raw = measure(tmp_path)
    for record in raw.records:
        if record["kind"] == "cell":
            record["texts"][0]["looping"] = True
    line = figures_of(raw.records)[0]
    assert line.num_looping == 1 and line.acceptance == 1 / 6 and line.tokens_per_step == 4 / 3
    assert line.tokens_per_second == 8 and line.ideal == pytest.approx(1.6 / 1.2)


def test_differences_are_counted_beside_the_speed(tmp_path):
    line = one(tmp_path, Bench(tokens=((1, 2, 9, 4), TOKENS[1])))
    assert line.differences == [2]


def test_void_cells_decide_nothing(tmp_path):
    line = one(tmp_path, Bench(controls=[1.5]))
    assert line.void and line.control == pytest.approx(1 / 1.5)
    assert best([line]) == [] and grid([line]) == [] and break_evens([line]) == []


def test_the_best_length_is_the_fastest_of_each_drafter(tmp_path):
    slow = Bench(seconds={f"{name} k=1": 1.9 for name in AXES.drafters})
    figures = figures_of(measure(tmp_path, slow).records)
    assert [line.cell.num_draft_tokens for line in best(figures)] == [2] * 8
    for line in figures:
        line.record["void"] = line.cell.num_draft_tokens == 2
    assert [line.cell.num_draft_tokens for line in best(figures)] == [1] * 8


def test_break_even_and_grid_take_what_belongs_together(tmp_path):
    figures = figures_of(measure(tmp_path).records)
    assert len(figures) == 16
    assert {(line.cell.way, str(crossing)) for line, crossing in break_evens(figures)} == {
        (f"{name} k={count}", "> 4") for name in AXES.drafters for count in (1, 2)
    }
    assert [[line.cell.max_tokens for line in lines] for lines in grid(figures)] == [[8, 16]] * 8


def test_runs_of_other_conditions_have_grids_of_their_own(tmp_path):
    figures = figures_of(measure(tmp_path).records)
    assert len(grid([*figures, *(replace(line, run="another") for line in figures)])) == 16


def test_half_a_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no description of run"):
        figures_of(measure(tmp_path).records[1:])
