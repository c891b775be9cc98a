"""Every option is timed in one and the same step, and the table says what it adds to it."""

import json

import pytest
import torch
from benchmarks.sampling_cost.__main__ import main
from benchmarks.sampling_cost.cases import (
    ALL,
    CONTEXT,
    GREEDY,
    SAMPLED,
    Cell,
    Prepared,
    options_for,
)
from benchmarks.sampling_cost.measure import AGAIN, measure_cells
from benchmarks.sampling_cost.table import figures_of, floor_of, tables_of

from benchmarks.sampling_cost import __main__ as command
from paceline.api import load
from paceline.api.loading import runnable
from paceline.bench.raw import OPTIONS, RUN, RawFile
from tests.api.checkpoints import pair


@pytest.fixture(autouse=True)
def rate(monkeypatch):
    """Memory that is read at 1 GB/s, found without reading any."""
    monkeypatch.setattr(command, "read_rate", lambda: 1e9)


def prepared(rows=2, k=3):
    target, draft = (load(path, dtype=torch.float32, device="cpu") for path in (pair().target, pair().draft))
    models = {"target": runnable(target), "draft": runnable(draft)}
    return Prepared(Cell(num_rows=rows, num_draft_tokens=k), **models, tokenizer=target.tokenizer, itemsize=4)


def small(path, *more):
    models = ["--target", str(pair().target), "--draft", str(pair().draft), "--dtype", "float32"]
    return [
        *models,
        "--repeats",
        "2",
        "--seconds",
        "0",
        "--rows",
        "1",
        "--k",
        "0",
        "--k",
        "2",
        "--output",
        str(path),
        *more,
    ]


@pytest.mark.parametrize("k", [0, 3])
def test_a_rewound_step_is_the_same_step_again(k):
    one = prepared(k=k)
    for option in (GREEDY, ALL, "repetition_penalty"):
        found = []
        for _ in range(2):
            one.rewind(option)
            found.append(one.step())
            one.rewind(SAMPLED)
            one.step()
        assert found[0].tokens == found[1].tokens and found[0].drafted == [k, k]
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


def test_a_file_is_continued_and_printed(tmp_path, capsys):
    path = tmp_path / "options.jsonl"
    assert main(small(path)) == 0
    first = path.read_text()
    assert main(small(path)) == 0 and path.read_text() == first, "what is there is not measured again"
    assert main(small(path, "--rows", "2")) == 0 and path.read_text().startswith(first)
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds == [RUN] + 4 * [OPTIONS]
    capsys.readouterr()
    assert main(["--report", "--output", str(path)]) == 0
    shown = capsys.readouterr().out
    for text in ("1 row, plain", "1 row, k = 2", "2 rows, k = 2", "logprobs=5", "floor", ALL):
        assert text in shown


def test_figures_are_paired_ratios_to_the_options_own_reference(tmp_path):
    clock = iter(range(10**6))
    raw = RawFile(tmp_path / "options.jsonl")
    one = prepared(rows=1, k=0)
    cells = [one.cell]
    measure_cells(cells, lambda _: one, raw=raw, run="x", repeats=3, seconds=0, clock=lambda: next(clock))
    [record] = raw.records
    assert record["controls"] == {GREEDY: 1.0, SAMPLED: 1.0} and not record["void"]
    assert all(line.added.value == 0 for line in figures_of(record))
    seconds = {name: [2.0, 4.0, 8.0] for name in record["seconds"]}
    seconds["temperature"], seconds["top_k=50"], seconds[SAMPLED] = [2.1, 4.2, 8.4], [3.0, 6.0, 12.0], [2.5, 5.0, 10.0]
    changed = {**record, "seconds": seconds, "logits_bytes": 4_000_000}
    added = {line.option: round(line.added.value, 6) for line in figures_of(changed)}
    assert (added["temperature"], added["top_k=50"], added[AGAIN[GREEDY]]) == (0.05, 0.2, 0.0)
    assert floor_of(changed, 1e9) == pytest.approx(0.001)
    assert tables_of([changed]) == [], "figures without their run say nothing"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--threads", "0"], "threads=0"),
        (["--threads", "2", "--processor-time"], "processor time of 2 threads"),
        (["--rows", "0"], "rows=0"),
        (["--k", "-1"], "k=-1"),
        (["--repeats", "0"], "repeats=0"),
        (["--seconds", "-1"], "seconds=-1"),
        (["--target", "elsewhere"], "--target"),
    ],
    ids=str,
)
def test_what_cannot_be_timed_is_refused_by_name(given, said, tmp_path, capsys):
    assert main([*small(tmp_path / "options.jsonl"), *given]) == 2
    assert said in capsys.readouterr().err


def test_an_empty_file_has_no_table(tmp_path, capsys):
    assert main(["--report", "--output", str(tmp_path / "options.jsonl")]) == 2
    assert "holds no figures" in capsys.readouterr().err
