"""``paceline bench --acceptance-only``: counts that no clock has a part in."""

import csv
import json

import pytest

from paceline.cli import run
from tests.api.checkpoints import pair
from tests.cli.test_bench import SMALL, prompts

OPTIONS = [word for word in SMALL if word not in ("--repeats", "--attempts", 1)]


def bench(output, *options):
    words = ("--target", pair().target, "--draft", pair().draft, "--output", output, "--prompt-file", prompts(output))
    return run([str(word) for word in ("bench", *words, *OPTIONS, "--acceptance-only", *options)])


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_same_command_counts_the_same_again(tmp_path, capsys):
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    for path in (first, second):
        assert bench(path, "--k", "2,3", "--temperature", "0,0.7", "--html") == 0
    begun, *counted = lines_of(first)
    assert counted == lines_of(second)[1:] and len(counted) == 8
    assert {record["kind"] for record in counted} == {"acceptance"} and "protocol" not in begun["conditions"]
    assert not any("seconds" in name for record in counted for name in record)
    out = " ".join(capsys.readouterr().out.split())
    assert "acceptance, float64, 1 thread, lines.txt, temperature 0.7, 8 tokens" in out and "minutes" not in out
    page = first.with_suffix(".html").read_text()
    assert "nothing was timed" in page and page.count("<svg") == 2 and "speed-up" not in page
    before = first.read_bytes()
    assert bench(first, "--k", "2,3", "--temperature", "0,0.7") == 0 and first.read_bytes() == before


def test_it_counts_what_timing_counts(tmp_path):
    path = tmp_path / "both.jsonl"
    words = ("--target", pair().target, "--draft", pair().draft, "--output", path, "--prompt-file", prompts(path))
    options = ("--k", "2", "--drafter", "model")
    assert bench(path, *options) == 0
    assert run([str(word) for word in ("bench", *words, *SMALL, *options)]) == 0
    by_kind = {record["kind"]: record for record in lines_of(path)}
    assert by_kind["acceptance"]["texts"] == by_kind["cell"]["texts"]
    found = [
        next(csv.DictReader(path.with_suffix(suffix).read_text().splitlines()))
        for suffix in (".csv", ".acceptance.csv")
    ]
    names = ("tokens_per_step", "acceptance", "acceptance_by_position")
    assert [found[0][name] for name in names] == [found[1][name] for name in names]


@pytest.mark.parametrize(
    "options",
    [("--repeats", 3), ("--attempts", 2), ("--together",), ("--peers",), ("--peer", "vllm"), ("--peer-k", "vllm=3")],
)
def test_what_only_timing_needs_is_refused(tmp_path, capsys, options):
    path = tmp_path / "raw.jsonl"
    assert bench(path, *options) == 2
    assert f"--acceptance-only with {options[0]}: it times nothing" in capsys.readouterr().err
    assert not path.exists()
