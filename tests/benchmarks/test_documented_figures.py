"""Every measured figure with an interval in README and docs is one of a raw file that its page names.

Blocks of output that ``docs/outputs.py`` makes anew are left out: they are what the command printed. The figures of the
raw files are listed beside the reports, because making them takes minutes; ``python -m
tests.benchmarks.test_documented_figures`` writes the list anew after a raw file was added or measured again.
"""

import contextlib
import hashlib
import io
import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.__main__ import STUDIES, main
from paceline.bench.raw import read_records
from paceline.cli import run

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).parent / "reports" / "figures.json"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
RAW = sorted((ROOT / "docs").rglob("*.jsonl"))
NUMBER = r"[+-]?\d+\.\d+"
FIGURE = re.compile(rf"({NUMBER})(?:\*\*)?\s+(?:\[({NUMBER}),\s+({NUMBER})\]|\(({NUMBER})\s+to\s+({NUMBER})\))")
OUTPUT = re.compile(r"<!-- output: [^\n]+ -->\n+```console\n.*?^```$", re.M | re.S)
# Of measurements whose raw figures were not kept: a number goes down when they are measured anew, and never up.
UNKEPT = {
    "docs/training.md": 6,
    "docs/benchmarks/README.md": 1,
    "docs/performance.md": 1,
}
NEEDED = {"speech": "--target unread --draft unread --sounds unread".split()}  # options that a report does not read


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
        same = self.rounding == other.rounding  # then one value is rounded to the same digits
        room = (0.0 if same else self.rounding + other.rounding) + 1e-9
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
    copy, study = shutil.copy(path, folder), study_of(path)
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        if study is None:
            assert run(["bench", "report", str(copy)]) == 0
        else:
            assert main([study, "--report", "--output", str(copy), *NEEDED.get(study, [])]) == 0
    return stream.getvalue()


def listed(path: Path) -> dict[str, object]:
    """What the list says of a file of raw figures."""
    with tempfile.TemporaryDirectory() as folder:
        figures = dict.fromkeys(figure.text for figure in figures_in(report(path, Path(folder))))
    return {"sha256": hash_of(path), "figures": [" ".join(text) for text in figures]}


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(scope="module")
def written():
    return json.loads(LIST.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def by_file(written):
    """The figures of every committed file, by the file's name without its end."""
    return {Path(name).stem: {Figure(tuple(text.split())) for text in one["figures"]} for name, one in written.items()}


def named_in(text: str, names: Iterable[str]) -> list[str]:
    """Those of ``names`` of raw files that a page names, by one of their own or of a drawing or table made of it."""
    return [name for name in names if re.search(rf"(?<![\w-]){re.escape(name)}[.`]", text)]


def missing_in(page: str, by_file: Mapping[str, Iterable[Figure]]) -> list[tuple[str, ...]]:
    """The figures of a page that no raw file has which it names."""
    known = [figure for name in named_in(page, by_file) for figure in by_file[name]]
    figures = figures_in(OUTPUT.sub("", page))
    return [figure.text for figure in figures if not any(figure.shows(other) for other in known)]


def test_the_list_is_of_the_committed_files(written):
    assert {name: one["sha256"] for name, one in written.items()} == {name_of(path): hash_of(path) for path in RAW}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", RAW, ids=name_of)
def test_the_list_has_what_the_reports_show(path, written):
    assert written[name_of(path)] == listed(path)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_figure_is_one_of_a_file_that_its_page_names(page, by_file):
    missing = missing_in(page.read_text(encoding="utf-8"), by_file)
    allowed = UNKEPT.get(name_of(page), 0)
    assert len(missing) <= allowed, f"no raw file that the page names has {missing}"
    assert len(missing) == allowed, "fewer than there were: lower the number above"


def test_a_figure_that_no_named_file_has_is_found():
    by_file = {"zoo": [Figure(("1.31", "1.28", "1.35"))], "load": [Figure(("2.00", "1.90", "2.10"))]}
    assert not missing_in("`zoo`: **1.31** [1.28, 1.35], 1.31 (1.28 to 1.35)", by_file)
    assert missing_in("`zoo`: 2.00 [1.90, 2.10] and **1.32** [1.28, 1.35]", by_file) == [
        ("2.00", "1.90", "2.10"),
        ("1.32", "1.28", "1.35"),
    ]


def test_files_are_named_by_what_is_made_of_them():
    names = ["heads", "zoo", "zoo-short", "load"]
    assert named_in("heads, zoo and load: `zoo-short`", names) == ["zoo-short"]
    assert named_in("![](benchmarks/zoo-short.svg) of heads.jsonl", names) == ["heads", "zoo-short"]


def test_rounded_figures_are_recognised():
    assert not Figure(("1.28", "1.23", "1.31")).shows(Figure(("1.29", "1.23", "1.31"))), "both rounded alike"
    assert Figure(("1.28", "1.23", "1.31")).shows(Figure(("1.276", "1.234", "1.312")))
    assert not Figure(("1.28", "1.23", "1.31")).shows(Figure(("1.276", "1.244", "1.312")))


if __name__ == "__main__":
    before = json.loads(LIST.read_text(encoding="utf-8")) if LIST.exists() else {}
    kept = {name: one for name, one in before.items() if (ROOT / name).exists()}
    changed = [path for path in RAW if kept.get(name_of(path), {}).get("sha256") != hash_of(path)]
    LIST.write_text(json.dumps(kept | {name_of(path): listed(path) for path in changed}, indent=1) + "\n")
