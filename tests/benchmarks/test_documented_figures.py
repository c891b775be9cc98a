"""Every measured figure with an interval in README and docs is one of a committed file of raw figures.

Blocks of output that ``docs/outputs.py`` makes anew are left out: they are what the command printed.
"""

import contextlib
import io
import re
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.__main__ import STUDIES, main
from paceline.bench.raw import read_records
from paceline.cli import run

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
RAW = sorted((ROOT / "docs").rglob("*.jsonl"))
NUMBER = r"[+-]?\d+\.\d+"
FIGURE = re.compile(rf"({NUMBER})\s+(?:\[({NUMBER}),\s+({NUMBER})\]|\(({NUMBER})\s+to\s+({NUMBER})\))")
OUTPUT = re.compile(r"<!-- output: [^\n]+ -->\n+```console\n.*?^```$", re.M | re.S)
QUOTED = re.compile(r"<!-- from the raw file: (?P<command>[^\n]+?) -->\n+```text\n(?P<body>.*?)^```$", re.M | re.S)
# Of measurements whose raw figures were not kept: each goes when it is measured anew by a study, and none is added.
UNKEPT: dict[str, int] = {}


class Figure(NamedTuple):
    """A value and its interval as they are written."""

    text: tuple[str, ...]

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(map(float, self.text))

    @property
    def rounding(self) -> float:
        """The most by which a number differs from what it was rounded from."""
        return max(0.5 * 10.0 ** -len(number.partition(".")[2]) for number in self.text)

    def shows(self, other: "Figure") -> bool:
        """Whether both may be the same, rounded."""
        room = self.rounding + other.rounding + 1e-9
        return all(abs(own - its) <= room for own, its in zip(self.values, other.values, strict=True))


def figures_in(text: str) -> Iterator[Figure]:
    for found in FIGURE.finditer(text):
        yield Figure(tuple(number for number in found.groups() if number is not None))


def study_of(path: Path) -> str | None:
    """The study whose figures a file has; None: those of ``paceline bench``."""
    kinds = {record["kind"] for record in read_records(path)}
    for name, place in STUDIES.items():
        module, _, which = place.partition(":")
        if getattr(getattr(import_module(module), which), "kind", None) in kinds:
            return name
    return None


def report(path: Path, folder: Path) -> str:
    """What is shown of a committed file of raw figures; drawings are written beside its copy in ``folder``."""
    copy = shutil.copy(path, folder)
    study = study_of(path)
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        if study is None:
            assert run(["bench", "report", str(copy)]) == 0
        else:
            assert main([study, "--report", "--output", str(copy)]) == 0
    return stream.getvalue()


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Of every committed file of raw figures."""
    folder = tmp_path_factory.mktemp("copies")
    return {path: report(path, folder) for path in RAW}


@pytest.fixture(scope="module")
def known(reports):
    """Every figure of the committed files."""
    return {figure for text in reports.values() for figure in figures_in(text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_figure_is_one_of_a_committed_file(page, known):
    text = OUTPUT.sub("", page.read_text(encoding="utf-8"))
    missing = [figure.text for figure in figures_in(text) if not any(figure.shows(other) for other in known)]
    allowed = UNKEPT.get(str(page.relative_to(ROOT)), 0)
    assert len(missing) <= allowed, f"no committed file of raw figures has {missing}"
    assert len(missing) == allowed, "fewer than there were: lower the number above"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_from_raw_files_are_their_reports(page, reports):
    for block in QUOTED.finditer(page.read_text(encoding="utf-8")):
        (path,) = [path for path in RAW if str(path.relative_to(ROOT)) in block["command"]]
        shown = {line.rstrip() for line in reports[path].splitlines()}
        other = [line for line in block["body"].splitlines() if line.rstrip() not in shown]
        assert not other, f"{block['command']} shows other lines"


def test_a_figure_that_no_file_has_is_found(known):
    assert not any(Figure(("1.2345", "1.1111", "1.3333")).shows(other) for other in known)
    assert any(next(iter(known)).shows(other) for other in known)


def test_rounded_figures_are_recognised():
    assert Figure(("1.28", "1.23", "1.31")).shows(Figure(("1.276", "1.234", "1.312")))
    assert not Figure(("1.28", "1.23", "1.31")).shows(Figure(("1.276", "1.244", "1.312")))
