"""``paceline train report``: a run that is finished, interrupted or lengthened, and what is no run."""

import json
import re
import shlex
import xml.etree.ElementTree as ElementTree

import pytest

from paceline.cli import run
from paceline.cli.app import read_options
from paceline.cli.commands.generate import Generate
from paceline.cli.commands.train import Train
from paceline.draft_heads import DRAFT_HEADS
from paceline.drafters import DRAFTERS
from tests.train.configs import log, recipe, train, write_target

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run, lengthened once."""
    root = write_target(tmp_path_factory.mktemp("report"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DRAFT_HEADS.entries, "last", "tests.train.heads:LastHead")
        patch.setitem(DRAFTERS.entries, "last", "tests.train.heads:LastDrafter")
        path = recipe(root, root / "run")
        assert train(path) == 0 and train(path, "--set", "schedule.steps=30") == 0
    return root / "run"


@pytest.fixture
def cut(whole, tmp_path):
    """The files of an unfinished run: two thirds of the log, and a last line that was being written."""
    lines = (whole / "log.jsonl").read_text().splitlines(keepends=True)
    kept = lines[: len(lines) * 2 // 3]
    (tmp_path / "log.jsonl").write_text("".join(kept) + lines[len(kept)][:20])
    (tmp_path / "config.yaml").write_text((whole / "config.yaml").read_text())
    return tmp_path, json.loads(kept[-1])["step"]


def report(folder, *words):
    return run(["train", "report", str(folder), *map(str, words)])


def test_page_and_picture_have_the_curves_and_load_nothing(whole, tmp_path, capsys):
    page, svg = tmp_path / "page.html", tmp_path / "curves.svg"
    assert report(whole, "--output", page, "--svg", svg) == 0
    first, written, command = capsys.readouterr().out.splitlines()
    last = [line["validation.last.greedy.tokens_per_step"] for line in log(whole) if "validation.last.t1.low" in line]
    assert first.startswith("30 of 30 steps are done. Loss ") and f"{last[-1]:.2f} by last greedy" in first
    assert str(page) in written and str(svg) in written
    parsed = read_options(shlex.split(command)[2:])
    assert isinstance(parsed, Generate) and parsed.drafting.draft == str(whole / "last")
    html, drawing = page.read_text(), svg.read_text()
    ElementTree.fromstring(drawing)
    for text in (
        "training batches",
        "mean acceptance length",
        "last at temperature 1",
        "position 3",
        "lengthened after",
    ):
        assert text in drawing and text in html, text
    assert html.index(first) < html.index("paceline generate") < html.index("<svg")
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#)|@import|url\((?!#)""", html)
    assert html.count("<td>") == len(last) * 5, "a row for every validation"


def test_unfinished_run_is_reported_up_to_its_last_whole_line(cut, capsys):
    folder, step = cut
    assert report(folder) == 0
    first, _, command = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{step} of 30 steps are done.")
    shown, _, words = command.partition(": ")
    assert shown == "next, unless it is still running"
    parsed = read_options(shlex.split(words)[1:])
    assert isinstance(parsed, Train) and parsed.config == folder / "config.yaml"
    assert parsed.settings == (f"output={folder}",), "it was moved"
    assert (folder / "report.html").exists() and (folder / "curves.svg").exists()


def test_run_without_a_validation_has_a_loss_alone(cut, capsys):
    folder, _ = cut
    (folder / "log.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": null}\n')
    assert report(folder) == 0
    assert "2 of 30 steps are done. Loss 2.500. No validation" in capsys.readouterr().out


NO_RUNS = {
    "nowhere": (lambda folder: folder / "there", "no such directory"),
    "no configuration": (lambda folder: (folder / "config.yaml").unlink(), "holds no config.yaml"),
    "no log": (lambda folder: (folder / "log.jsonl").unlink(), "holds no log.jsonl"),
    "nothing whole": (lambda folder: (folder / "log.jsonl").write_text('{"st') and None, "no whole line in it yet"),
    "a broken line": (
        lambda folder: (folder / "log.jsonl").write_text('{"step": 1}\n{"st\n{"step": 2}\n') and None,
        "log.jsonl, line 2: ",
    ),
    "another file": (
        lambda folder: (folder / "config.yaml").write_text("target: {}") and None,
        "output: Field required",
    ),
}


@pytest.mark.parametrize("case", NO_RUNS)
def test_what_is_no_run_is_refused_by_what_is_missing(case, cut, capsys):
    spoil, message = NO_RUNS[case]
    folder, _ = cut
    assert report(spoil(folder) or folder) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not (folder / "report.html").exists()


def test_files_that_cannot_be_written_are_refused_first(cut, capsys):
    folder, _ = cut
    assert report(folder, "--svg", folder / "there" / "a.svg") == 2
    assert "--svg" in capsys.readouterr().err
    assert report(folder, "--svg", folder / "a", "--output", folder / "a") == 2
    assert "give two files" in capsys.readouterr().err and not (folder / "a").exists()
