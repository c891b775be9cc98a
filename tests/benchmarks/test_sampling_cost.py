"""Every option is timed in one and the same step, and the table says what it adds to it."""

import json
from itertools import count

import pytest
import torch

from benchmarks.sampling_cost import study
from benchmarks.sampling_cost.options import ALL, CONTEXT, GREEDY, SAMPLED, Cell, Steps, options_for
from benchmarks.sampling_cost.study import AGAIN, added, measure_cells
from benchmarks.study import Timing
from paceline.api import load
from paceline.api.loading import runnable
from paceline.bench.raw import RawFile
from tests.api.checkpoints import pair
from tests.benchmarks.command import run


@pytest.fixture(autouse=True)
def rate(monkeypatch):
    """Memory that is read at 1 GB/s, found without reading any."""
    monkeypatch.setattr(study, "read_rate", lambda: 1e9)


def prepared(rows=2, k=3):
    target, draft = (load(path, dtype=torch.float32, device="cpu") for path in (pair().target, pair().draft))
    models = {"target": runnable(target), "draft": runnable(draft)}
    return Steps(Cell(num_rows=rows, num_draft_tokens=k), **models, tokenizer=target.tokenizer, itemsize=4)


def small(path, *more):
    models = ("--target", pair().target, "--draft", pair().draft, "--dtype", "float32")
    timing = ("--repeats", 2, "--seconds", 0, "--rows", 1, "--k", "0,2")
    return run("sampling-cost", *models, *timing, "--output", path, *more)


@pytest.mark.parametrize("k", [0, 3])
def test_a_rewound_step_is_the_same_step_again(k):
    one = prepared(k=k)
    for option in (GREEDY, ALL, "repetition_penalty"):
        found = []
        for _ in range(2):
            one.rewind(option)
            one.step()
            found.append(one._decoder.results())
            one.rewind(SAMPLED)
            one.step()
        assert found[0].tokens == found[1].tokens and found[0].num_drafted == [k, k]
        assert (found[0].logprobs == found[1].logprobs) and bool(found[0].logprobs[0]) == (option == ALL)


def test_options_change_steps():
    """An option that does nothing would cost nothing."""
    one = prepared(rows=1, k=0)
    options = options_for(320)
    assert len({option.name for option in options}) == len(options)
    for option in options:
        one.rewind(option.name)
        batch = one._decoder.batch
        assert int(batch.length[0]) == CONTEXT
        plain = option.reference is None and option.name == GREEDY
        bare = not (batch.processing.any or batch.sampling.any_sampled or batch.wants_logprobs)
        assert bare == plain, option.name
        if option.processing.counts:
            assert int(batch.processing.counts[:, :-1].sum()) > 0, "nothing of the new text is counted"


def test_a_file_is_continued_and_printed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Timing, "clock", property(lambda _: count().__next__))
    monkeypatch.setattr("benchmarks.study.hash_source", lambda: "unchanged")
    path = tmp_path / "options.jsonl"
    assert small(path) == 0
    first = path.read_text()
    assert small(path) == 0 and path.read_text() == first, "what is there is not measured again"
    assert small(path, "--rows", "1,2") == 0 and path.read_text().startswith(first)
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds == ["run"] + 4 * ["options"]
    capsys.readouterr()
    assert run("sampling-cost", "--report", "--output", path) == 0
    shown = capsys.readouterr().out
    for text in ("1 row, plain", "1 row, k = 2", "2 rows, k = 2", "logprobs=5", "floor", ALL):
        assert text in shown


def test_figures_are_paired_ratios_to_the_options_own_reference(tmp_path, monkeypatch):
    raw = RawFile(tmp_path / "options.jsonl")
    one = prepared(rows=1, k=0)
    cells = [Cell(num_rows=1, num_draft_tokens=0)]
    monkeypatch.setattr(Timing, "clock", property(lambda _: count().__next__))
    measure_cells(cells, lambda _: one, raw=raw, run="x", timing=Timing(repeats=3, seconds=0))
    [record] = raw.records
    assert record["controls"] == {GREEDY: 1.0, SAMPLED: 1.0} and not record["void"]
    assert all(added(record, option).value == 0 for option in record["references"])
    seconds = {name: [2.0, 4.0, 8.0] for name in record["seconds"]}
    seconds["temperature"], seconds["top_k=50"], seconds[SAMPLED] = [2.1, 4.2, 8.4], [3.0, 6.0, 12.0], [2.5, 5.0, 10.0]
    changed = {**record, "seconds": seconds}
    found = [added(changed, option).value for option in ("temperature", "top_k=50", AGAIN[GREEDY])]
    assert found == pytest.approx([0.05, 0.2, 0.0])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--threads", "0"], "threads=0"),
        (["--threads", "2", "--processor-time"], "processor time of 2 threads"),
        (["--rows", "0"], "rows=0"),
        (["--k", "few"], "few: give numbers"),
        (["--repeats", "0"], "repeats=0"),
        (["--seconds", "-1"], "seconds=-1"),
        (["--target", "elsewhere"], "elsewhere"),
    ],
    ids=str,
)
def test_what_cannot_be_timed_is_refused_by_name(given, said, tmp_path, capsys):
    assert small(tmp_path / "options.jsonl", *given) == 2
    assert said in capsys.readouterr().err


def test_an_empty_file_has_no_table(tmp_path, capsys):
    assert run("sampling-cost", "--report", "--output", tmp_path / "options.jsonl") == 2
    assert "holds no figures" in capsys.readouterr().err
