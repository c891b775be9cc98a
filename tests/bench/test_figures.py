import csv
import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from paceline.bench import output
from paceline.bench.figures import best, break_evens, figures_of, grid
from paceline.bench.page import make_page
from paceline.bench.raw import RawFile
from paceline.bench.spreadsheets import COLUMNS, to_csv
from paceline.bench.sweep import Axes, Protocols, run_sweep
from paceline.bench.tables import best_table
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
    assert (line.tokens_per_second, line.plain_tokens_per_second) == (8, 4)
    assert line.tokens_per_step == 8 / 5 and line.accepted_per_step == 3 / 5
    assert line.acceptance == 3 / 10 and line.by_position == (3 / 5, 0)
    assert line.step_seconds == pytest.approx((0.02, 0.12, 0.01, 0.01))
    assert line.plain_step_seconds == pytest.approx((0, 0.1, 0, 0.025))
    assert line.ideal == pytest.approx(1.6 / 1.2) and line.efficiency == pytest.approx(2 / (1.6 / 1.2))
    assert (line.num_texts, line.num_looping, line.num_different, line.first_difference) == (2, 0, 0, None)


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
    assert (line.num_different, line.first_difference) == (1, 2)


def test_void_cells_decide_nothing(tmp_path):
    line = one(tmp_path, Bench(controls=[1.5]))
    assert line.void and line.control == pytest.approx(1 / 1.5)
    assert best([line]) == [] and best_table([line]) is None and grid([line]) == [] and break_evens([line]) == []


def test_the_best_length_is_the_fastest_of_each_drafter(tmp_path):
    figures = figures_of(measure(tmp_path).records)
    slow = [
        replace(line, speedup=replace(line.speedup, value=1.1)) if line.cell.num_draft_tokens == 1 else line
        for line in figures
    ]
    assert [line.cell.num_draft_tokens for line in best(slow)] == [2] * 8
    void = [replace(line, void=line.cell.num_draft_tokens == 2) for line in slow]
    assert [line.cell.num_draft_tokens for line in best(void)] == [1] * 8


def test_break_even_and_grid_take_what_belongs_together(tmp_path):
    figures = figures_of(measure(tmp_path).records)
    assert len(figures) == 16
    assert {(name, count, str(crossing)) for _, name, count, crossing in break_evens(figures)} == {
        (name, count, "> 4") for name in AXES.drafters for count in (1, 2)
    }
    assert [line.max_tokens for line in grid(figures)] == [(8, 16)] * 8


def test_means_of_the_grid_are_over_its_lengths(tmp_path):
    figures = figures_of(measure(tmp_path).records)
    slower = [
        replace(line, tokens_per_second=2.0, speedup=replace(line.speedup, value=1.0))
        if line.cell.max_tokens == 16
        else line
        for line in figures
    ]
    (line,) = [
        line for line in grid(slower) if (line.drafter, line.num_draft_tokens, line.batch_size) == ("ngram", 2, 4)
    ]
    assert (line.speedup, line.tokens_per_second, line.temperature) == (1.5, 5, 0)


def test_runs_of_other_conditions_have_grids_of_their_own(tmp_path):
    figures = figures_of(measure(tmp_path).records)
    assert len(grid([*figures, *(replace(line, run="another") for line in figures)])) == 16


def test_csv_has_a_line_for_every_cell(tmp_path):
    rows = list(csv.DictReader(io.StringIO(to_csv(figures_of(measure(tmp_path).records)))))
    assert len(rows) == 16 and tuple(rows[0]) == COLUMNS
    assert rows[0]["speedup"] == "2" and rows[0]["draft_ms"] == "20" and rows[0]["first_difference"] == ""


class Loads(HTMLParser):
    """What a page would load, and its scripts."""

    def __init__(self):
        super().__init__()
        self.found, self.num_drawings = [], 0

    def handle_starttag(self, tag, attributes):
        self.num_drawings += tag == "svg"
        for name, value in attributes:
            if tag in ("script", "link", "iframe", "img") or name == "src":
                self.found.append((tag, name, value))
            if name in ("href", "xlink:href") and not value.startswith("#"):
                self.found.append((tag, name, value))


def test_the_page_loads_nothing_and_escapes_everything(tmp_path):
    page = make_page(measure(tmp_path).records, title="<i>title</i>")
    loads = Loads()
    loads.feed(page)
    assert loads.found == [] and loads.num_drawings == 8
    assert "<i>title" not in page and "<b>bold" not in page and "<script>" not in page
    assert "&lt;script&gt;" in page and "&lt;b&gt;bold" in page
    assert page.count("http:") == 1  # the one that the conditions name, as text
    assert not re.search(r"url\((?!#)|@import|xmlns", page)


def test_a_page_with_void_cells_only_is_still_a_page(tmp_path):
    page = make_page(measure(tmp_path, Bench(controls=[2.0] * 16)).records, title="noise")
    assert 'class="void"' in page and "<svg" not in page


def test_reports_come_from_the_raw_file_alone(tmp_path):
    raw = measure(tmp_path)
    written = output.write_reports(raw.path, html=True)
    assert [file.name for file in written] == ["raw.csv", "raw.html"]
    first = [file.read_text() for file in written]
    assert [file.read_text() for file in output.write_reports(raw.path, html=True)] == first
    console = Console(width=200, record=True, quiet=False, file=io.StringIO())
    output.print_tables(raw.records, console)
    text = console.export_text()
    assert (
        "each at its best k" in text
        and "2.00 2.00-2.00" in text
        and "means over lengths of text" in text
        and "8, 16" in text
        and "stops paying" in text
    )


def test_half_a_file_is_refused(tmp_path):
    records = measure(tmp_path).records
    with pytest.raises(ValueError, match="no description of run"):
        figures_of(records[1:])
    with pytest.raises(ValueError, match="nothing to report"):
        make_page(records[:1], title="")


def test_drawing_without_its_library_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    raw = measure(tmp_path)
    monkeypatch.setattr(output, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"paceline\[bench\]"):
        output.write_reports(raw.path, html=True)
    assert [file.name for file in tmp_path.iterdir()] == ["raw.jsonl"]
    assert len(output.write_reports(raw.path, html=False)) == 1
