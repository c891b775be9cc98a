"""Every study by the command line: its help, the reports of its committed figures, and what it refuses.

``python -m tests.benchmarks.test_studies`` writes the reports anew, after a table was changed on purpose.
"""

import contextlib
import io
import shutil
import tempfile
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import STUDIES, main
from tests.api.checkpoints import pair, without_tokenizer
from tests.benchmarks.command import SMALL, run, small

DOCS, REPORTS = Path(__file__).parents[2] / "docs", Path(__file__).parent / "reports"
COMMITTED = {
    "experiments/batched": "batched",
    "experiments/resume": "resume",
    "benchmarks/sampling-cost": "sampling-cost",
    "benchmarks/scaling": "scaling",
    "benchmarks/verifiers-cost": "verifier-cost",
    "benchmarks/verifiers-embedded": "verifier-ranking",
}
KEPT = (
    "batched",
    "controller",
    "drafters",
    "gpu",
    "heads",
    "lengths",
    "load",
    "resume",
    "sampling-cost",
    "scaling",
    "serving",
    "verifier-cost",
    "verifier-ranking",
)
MODELS = ("batched", "controller", "drafters", "gpu", "heads", "lengths", "load", "serving", "verifier-ranking")


def report_of(raw, folder):
    """What a study prints and writes of a committed file of raw figures."""
    copied = shutil.copy(DOCS / f"{raw}.jsonl", folder)
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        assert main([COMMITTED[raw], "--report", "--output", copied]) == 0
    return stream.getvalue().replace(f"{folder}/", "")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("raw", COMMITTED)
def test_reports_of_committed_figures_are_unchanged(raw, tmp_path):
    assert report_of(raw, tmp_path) == (REPORTS / f"{Path(raw).name}.txt").read_text()
    for written in tmp_path.glob("*.csv"):
        assert written.read_bytes() == (DOCS / raw).with_suffix(".csv").read_bytes()


@pytest.mark.parametrize("study", STUDIES)
def test_every_study_has_help(study, capsys):
    assert main([study, "--help"]) == 0
    assert study in capsys.readouterr().out


@pytest.mark.parametrize(
    ("study", "words", "said"),
    [
        *((study, ["--report"], "holds no figures of this study") for study in KEPT),
        *((study, ["--draft"], "give both") for study in MODELS),
        *((study, ["--repeats", 0], "repeats=0: give at least 1") for study in ("batched", "scaling", "verifier-cost")),
        *((study, ["--seconds", -1], "give 0 or more") for study in ("sampling-cost", "scaling", "verifier-cost")),
        *((study, ["--threads", 0], "threads=0: give at least 1") for study in KEPT),
        *(
            (study, ["--threads", 2, "--processor-time"], "processor time of 2 threads")
            for study in ("sampling-cost", "scaling", "verifier-cost")
        ),
        ("batched", ["--k", 0], "k=0: give at least 1"),
        ("batched", ["--max-tokens", 0], "max_tokens=0: give at least 1"),
        ("batched", ["--max-tokens", 600], "context of 512"),
        ("batched", ["--batch", 3], "2 prompts and batch size 3"),
        ("batched", ["--runtime", "gpu"], "known are eager, kernel"),
        ("controller", ["--suites", "novel"], "unknown suite 'novel'"),
        ("controller", ["--drafters", "medusa"], "known are model, ngram and useless"),
        ("drafters", ["--suites", "novel"], "unknown suite 'novel'"),
        ("drafters", ["--drafters", "medusa"], "known are ngram"),
        ("drafters", ["--repeats", 1], "repeats=1: give at least 2"),
        ("gpu", ["--batch", 0], "batch=(0,): give at least 1"),
        ("gpu", ["--parameters", "some"], "--parameters some"),
        ("gpu", ["--minutes", 0], "minutes=0.0"),
        ("gpu", ["--dense"], "--dense compares with FlexAttention, which is not used on cpu"),
        ("resume", ["--k", 0], "num_draft_tokens=0: give at least 1"),
        ("resume", ["--num-steps", 0], "num_steps=0: give at least 1"),
        ("resume", ["--exit", 3], "exit_layer=3: the target has 3 layers"),
        ("resume", ["--target", "short"], "context of 12"),
        ("sampling-cost", ["--rows", 0], "rows=0: give at least 1"),
        ("sampling-cost", ["--k", "few"], "few: give numbers such as 1,2,4 or 1-8"),
        ("sampling-cost", ["--target", "elsewhere"], "elsewhere"),
        ("scaling", ["--rows", 0], "rows=(0,): give at least 1"),
        ("scaling", ["--nodes", 0], "nodes=(0,): give at least 1"),
        ("scaling", ["--context", 0], "context=(0,): give at least 1"),
        ("scaling", ["--prompt", 600], "a prompt of 600 tokens and a first one leave the target's context of 512"),
        ("verifier-cost", ["--rows", 0], "rows=0: give at least 1"),
        ("verifier-cost", ["--vocab", 3], "vocab=3: give at least 16"),
        ("verifier-cost", ["--k", 0], "k=(0,): give at least 1"),
        ("verifier-cost", ["--verifier", "wish"], "unknown verifier 'wish'"),
        ("verifier-cost", ["--output", "nowhere/at/all.jsonl"], "no such directory"),
        ("verifier-ranking", ["--suite", "novel"], "unknown suite 'novel'"),
        ("verifier-ranking", ["--seeds", 0], "num_seeds=0: give at least 1"),
    ],
    ids=str,
)
def test_what_cannot_be_honoured_is_refused_by_name(study, words, said, tmp_path, capsys, still_machine, monkeypatch):
    threads = torch.get_num_threads()
    monkeypatch.chdir(tmp_path)
    without_tokenizer(tmp_path / "short", max_position_embeddings=12)
    given = [*words, pair().target] if words == ["--draft"] else words
    try:
        code = run(study, *given, "--output", "raw.jsonl") if given != words else small(study, "raw.jsonl", *words)
    finally:
        torch.set_num_threads(threads)
    assert code == 2 and said in " ".join(capsys.readouterr().err.split())


def test_a_draft_needs_its_target(tmp_path, capsys):
    assert run("scaling", "--draft", "somewhere", "--output", tmp_path / "raw.jsonl") == 2
    assert "give --target too" in capsys.readouterr().err


def test_every_kept_study_has_a_smallest_form():
    assert set(SMALL) == set(KEPT) and set(COMMITTED.values()) < set(KEPT)


if __name__ == "__main__":
    REPORTS.mkdir(exist_ok=True)
    for raw in COMMITTED:
        with tempfile.TemporaryDirectory() as folder:
            (REPORTS / f"{Path(raw).name}.txt").write_text(report_of(raw, folder))
