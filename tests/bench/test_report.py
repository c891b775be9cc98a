"""Reports are made from the raw figures alone, and say the same in CSV, on a terminal and in HTML."""

import csv
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from paceline.bench import output
from paceline.bench.columns import Column, Section, spread, to_csv
from paceline.bench.raw import RawFile
from paceline.bench.statistics import Estimate
from tests.bench import test_categories as categories
from tests.bench import test_figures as cells
from tests.bench import test_head_to_head as pairs
from tests.bench.scripted import TOKENS, Bench

COMMITTED = Path(__file__).parents[2] / "docs" / "benchmarks"


def printed(records):
    console = Console(width=200, record=True, file=io.StringIO())
    output.print_tables(records, console)
    return console.export_text()


@pytest.mark.parametrize("name", ["cpu-batch1", "cpu-sampled-4k"])
def test_committed_csv_follows_from_the_committed_raw_figures(tmp_path, name):
    path = tmp_path / f"{name}.jsonl"
    path.write_bytes((COMMITTED / path.name).read_bytes())
    written = output.write_reports(path, html=False)
    assert len(written) == 3
    assert all(file.read_text() == (COMMITTED / file.name).read_text() for file in written)


def test_columns_give_csv_and_tables():
    columns = [
        Column("who", "0", name="name", left=True),
        Column("ms", "1", ".2f", name="time", estimate=True),
        Column(None, lambda line: 0.123456789, name="hidden"),
        Column("spread", "1", spread(".0f", 100), wide=True),
    ]
    lines = [("a", Estimate(value=2.0, low=1.0, high=2.5)), ("b", None)]
    assert to_csv(columns, lines).splitlines() == [
        "name,time,time_low,time_high,hidden",
        "a,2,1,2.5,0.123457",
        "b,,,,0.123457",
    ]
    section = Section(title="t", columns=columns, lines=lines)
    assert section.headings() == ["who", "ms", "spread"] and section.headings(wide=False) == ["who", "ms"]
    assert section.rows() == [["a", "2.00 [1.00, 2.50]", "200 ±50%"], ["b", "-", "-"]]


def test_csv_has_a_line_for_every_cell(tmp_path):
    raw = cells.measure(tmp_path)
    (file,) = output.write_reports(raw.path, html=False)
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert len(rows) == 16 and rows[0]["speedup"] == "2"
    assert rows[0]["draft_ms"] == "20" and rows[0]["first_difference"] == ""


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
    page = output.make_page(cells.measure(tmp_path).records, title="<i>title</i>")
    loads = Loads()
    loads.feed(page)
    assert loads.found == [] and loads.num_drawings == 1 + 2 * 4  # the speeds, and for each length four of its own
    assert "&lt;i&gt;title" in page and "&lt;b&gt;bold" in page and not re.search(r"url\((?!#)", page)


def test_every_table_is_on_the_terminal_and_on_the_page(tmp_path):
    path = tmp_path / "raw.jsonl"
    for records, titles in (
        (cells.measure(tmp_path, name="cells.jsonl").records, ("each at its best k", "stops paying", "means over")),
        (pairs.measure(path), ("best against best",)),
        (categories.measure(tmp_path / "categories.jsonl"), ("by category",)),
    ):
        text, page = printed(records), output.make_page(records, title="all").lower()
        assert all(title in text and title in page for title in titles)
    written = output.write_reports(path, html=False)
    assert {file.name for file in written} == {"raw.csv", "raw.head-to-head.csv"}


def test_void_lines_have_no_times_in_tables(tmp_path):
    records = pairs.measure(
        tmp_path / "raw.jsonl", Bench(seconds=pairs.SECONDS, controls=[1] * len(pairs.AXES.cells()) + [2] * 4)
    )
    text, page = printed(records), output.make_page(records, title="void")
    assert len(re.findall(r"\bvoid\b +- ", text)) == 4 and page.count('<td class="right">void</td>') == 4
    assert page.count('<tr class="void">') == 4
    for note in (text, page):
        assert "came to 0.50 and not to 0.97 to 1.03" in " ".join(note.split())


def test_charts_leave_out_void_cells_and_say_how_many(tmp_path):
    page = output.make_page(cells.measure(tmp_path, Bench([1] * 8 + [1.5])).records, title="")
    # The speeds of the four cells at batch 1, and the charts of all eight of that length.
    assert re.findall(r"Left out: (\d of \d) cells, which are void", page) == ["1 of 4", *["1 of 8"] * 3]
    all_void = tmp_path / "all"
    all_void.mkdir()
    page = output.make_page(cells.measure(all_void, Bench([1.5] * 16)).records, title="")
    assert "All 16 cells are void" in page and page.count("<svg") == 2  # what was accepted needs no clock


def test_differences_are_shown(tmp_path):
    records = cells.measure(tmp_path, Bench(tokens=((1, 2, 9, 4), TOKENS[1]))).records
    assert "1/2" in printed(records)


def test_a_file_without_cells_and_a_missing_library_are_refused_before_anything_is_written(tmp_path, monkeypatch):
    raw = cells.measure(tmp_path)
    with pytest.raises(ValueError, match="nothing to report"):
        output.make_page(raw.records[:1], title="")
    monkeypatch.setattr(output, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"paceline\[bench\]"):
        output.write_reports(raw.path, html=True)
    assert [file.name for file in tmp_path.iterdir()] == ["raw.jsonl"]
    assert len(output.write_reports(raw.path, html=False)) == 1
    assert RawFile(raw.path).records == raw.records


def test_more_series_than_colours_differ_in_their_markers():
    from paceline.bench import drawing  # needs the optional matplotlib

    styles = [tuple(sorted(drawing.series(at).items())) for at in range(2 * len(drawing.COLOURS))]
    assert len(set(styles)) == len(styles)
