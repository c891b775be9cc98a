"""Every rule is timed wherever it applies, on trees that drafters could have drawn, and what was found can be read."""

import csv
import io
import json

import pytest
import torch
from benchmarks.verifier_cost.__main__ import main, plan
from benchmarks.verifier_cost.cases import TREE, Cell, Prepared, Rule, chain_of
from benchmarks.verifier_cost.measure import CONTROL, PLAIN_PICK, measure_rules, read_rules, write_rules
from benchmarks.verifier_cost.table import COLUMNS, rule_figures_of, rules_to_csv

from benchmarks.verifier_cost import measure
from paceline.bench.timing import read_rate, time_in_turn
from paceline.core.tree import Draw
from paceline.verifiers import VERIFIERS

GREEDY = {"coupled, T = 0", "rejection, T = 0"}
RULES = {*VERIFIERS.builtin, *GREEDY}
CHAINS_ALONE = {name for name in VERIFIERS.builtin if not VERIFIERS.find(name).branches} | {"rejection, T = 0"}
QUICK = ["--quick", "--repeats", "1", "--seconds", "0"]


@pytest.fixture
def rate(monkeypatch):
    """Memory that is read at 1 GB/s, found without reading any."""
    monkeypatch.setattr(measure, "read_rate", lambda **_: 1e9)


def small(lengths=(1, 3)):
    return plan(VERIFIERS.builtin, rows=(2,), vocabs=(64,), lengths=lengths, many=False)


def test_every_rule_is_timed_in_every_cell_that_it_takes_and_refused_in_no_other(rate):
    conditions, *cells = measure_rules(small(), repeats=2, seconds=0)
    assert [cell["shape"] for cell in cells] == ["k = 1", "k = 3", "tree of 48"]
    assert (conditions["threads"], conditions["precision"]) == (torch.get_num_threads(), "float32")
    for cell in cells:
        refused = CHAINS_ALONE if cell["shape"] == TREE.name else set()
        assert cell["refused"] == dict.fromkeys(sorted(refused), "takes chains alone")
        assert cell["timed"].keys() == {PLAIN_PICK, f"{PLAIN_PICK}, T = 0", *RULES} - refused
        assert all(len(line["seconds"]) == 2 and min(line["seconds"]) > 0 for line in cell["timed"].values())
        assert all(1 <= line["tokens_per_step"] <= 5 for line in cell["timed"].values())


def test_a_rule_that_cannot_run_is_named_with_its_reason_and_the_others_are_timed(rate, monkeypatch):
    def broken(self, tree, logits, batch):
        raise ValueError("not today")

    monkeypatch.setattr(VERIFIERS.find("match"), "__call__", broken)
    _, cell = measure_rules(small(lengths=(2,))[:1], repeats=1, seconds=0)
    assert cell["refused"] == {"match": "not today"} and cell["timed"].keys() >= RULES - {"match"}


@pytest.mark.parametrize("shape", [chain_of(1), chain_of(4), TREE], ids=lambda shape: shape.name)
def test_trees_are_whole_and_carry_laws_where_the_draw_has_them(shape):
    prepared = Prepared(Cell(num_rows=3, vocab_size=64, shape=shape))
    batch = prepared._batch(1.0)
    for draw in Draw:
        tree = prepared._grow(batch, draw)
        assert tree.num_nodes == shape.topology.num_drafted + 1 and tree.valid.all() and tree.chain == shape.chain
        assert (tree.draw == int(draw)).all()
        if draw in (Draw.FIXED, Draw.SHARED):
            assert tree.laws is None
            continue
        inner = len({node for node in tree.parents[0].tolist() if node >= 0})
        assert tree.laws.shape == (3, inner, 64)
        own = tree.laws.gather(1, tree.law[:, 1:, None].expand(-1, -1, 64))  # that each drafted node was drawn from
        depth = tree.depth[0, 1:] - 1
        torch.testing.assert_close(own, prepared.draft.softmax(-1)[:, depth])


def test_the_laws_share_about_seventy_percent_of_their_mass():
    prepared = Prepared(Cell(num_rows=4, vocab_size=4096, shape=chain_of(8)))
    shared = torch.minimum(prepared.draft.softmax(-1), prepared.logits.softmax(-1)).sum(-1)
    assert shared.mean() == pytest.approx(0.7, abs=0.03)


def test_the_floor_counts_the_logits_and_the_laws_that_were_given():
    prepared = Prepared(Cell(num_rows=2, vocab_size=64, shape=chain_of(3)))
    row = 2 * 64 * 4
    for name, laws in {"coupled": 0, "match": 0, "rejection": 3, "traversal": 3}.items():
        call = prepared.call(Rule(verifier=name))
        assert (call.logits_bytes, call.laws_bytes) == (4 * row, laws * row), name
    assert (prepared.plain(1.0).logits_bytes, prepared.plain(1.0).laws_bytes) == (row, 0)


def test_calls_take_turns_and_the_order_turns_round():
    order, now = [], iter(range(1000))
    calls = {name: (lambda name=name: order.append(name)) for name in "abc"}
    taken = time_in_turn(calls, repeats=2, seconds=8, clock=lambda: next(now))
    assert "".join(order) == "cba" + "abc" + "cba" + "abc"  # a warm-up, two repeats, and one for the seconds
    assert taken == {name: (1, 1, 1) for name in "abc"}


def test_memory_is_read_at_some_speed():
    assert 1e6 < read_rate(working_set=1 << 20, reads=2) < 1e13


def test_figures_follow_from_the_file(rate, tmp_path):
    records = measure_rules(small(lengths=(2,)), repeats=3, seconds=0)
    path = tmp_path / "rules.jsonl"
    write_rules(path, records)
    assert read_rules(path) == records and [file.name for file in tmp_path.iterdir()] == ["rules.jsonl"]
    figures = {(line.shape, line.rule): line for line in rule_figures_of(records)}
    cell = records[1]
    line, timed = figures["k = 2", "rejection"], cell["timed"]["rejection"]
    assert line.time.value == pytest.approx(1000 * sorted(timed["seconds"])[1])
    assert line.floor == pytest.approx(1000 * (3 + 2) * 2 * 64 * 4 / 1e9)
    plain = cell["timed"][PLAIN_PICK]["seconds"]
    assert line.picks == pytest.approx(sorted(own / one for own, one in zip(timed["seconds"], plain, strict=True))[1])
    assert figures["k = 2", PLAIN_PICK].picks == figures["k = 2", f"{PLAIN_PICK}, T = 0"].picks == 1
    lines = list(csv.reader(io.StringIO(rules_to_csv(records))))
    assert tuple(lines[0]) == COLUMNS and len(lines) == 1 + len(figures) and {len(one) for one in lines} == {18}


def test_a_machine_that_was_not_quiet_is_said(rate, monkeypatch, tmp_path, capsys):
    def scripted(calls, **_):
        return {name: (2.0 if name == CONTROL else 1.0,) for name in calls}

    monkeypatch.setattr(measure, "time_in_turn", scripted)
    assert main([*QUICK, "--k", "1"]) == 0
    out = capsys.readouterr().out
    assert "k = 1 (void)" in out and "was not quiet" in out


def test_the_command_shows_every_rule_with_footnotes_and_shows_its_file_again(rate, tmp_path, capsys):
    path = tmp_path / "rules.jsonl"
    assert main([*QUICK, "--output", str(path)]) == 0
    out = capsys.readouterr().out
    assert all(any(line.startswith(f"{name} ") for line in out.splitlines()) for name in (*RULES, PLAIN_PICK))
    assert "at tree of 48: block, lossy_lenient, rejection, rejection, T = 0: takes chains alone" in out
    assert path.with_suffix(".csv").read_text().startswith("run,rows,vocab,shape")
    assert main(["--show", str(path)]) == 0
    assert capsys.readouterr().out == out.rpartition(str(path.with_suffix(".jsonl")) + " and")[0]


def test_a_file_is_shown_in_part(rate, tmp_path, capsys):
    path = tmp_path / "rules.jsonl"
    assert main([*QUICK, "--rows", "1", "--rows", "3", "--processor-time", "--output", str(path)]) == 0
    assert "processor time, 1 repeats" in capsys.readouterr().out
    assert main(["--show", str(path), "--rows", "3"]) == 0
    out = capsys.readouterr().out
    assert "3 rows, vocabulary 512" in out and "1 row, vocabulary" not in out
    assert main(["--show", str(path), "--vocab", "64"]) == 2
    assert "1 x 512, 3 x 512" in capsys.readouterr().err


def test_many_rows_are_for_the_common_rules_and_the_rest_is_footnoted():
    cells = {
        (cell.num_rows, cell.vocab_size): rules
        for cell, rules in plan(VERIFIERS.builtin, rows=(1, 8), vocabs=(4096,), lengths=(1, 4), many=True)
    }
    assert {rule.name for rule in cells[32, 131072]} == {"coupled", "rejection", *GREEDY}
    assert {rule.name for rule in cells[8, 4096]} == RULES


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rows", "0"], "rows=0: give at least 1"),
        (["--vocab", "3"], "vocab=3: give at least 16"),
        (["--k", "0"], "k=0: give at least 1"),
        (["--repeats", "0"], "repeats=0: give at least 1"),
        (["--seconds", "-1"], "seconds=-1.0: give 0 or more"),
        (["--threads", "0"], "threads=0: give at least 1"),
        (["--verifier", "wish"], "unknown verifier 'wish'"),
        (["--output", "nowhere/at/all.jsonl"], "no such directory"),
        (["--output", "rules.csv"], "ends in .jsonl"),
        (["--show", "nowhere.jsonl"], "No such file"),
        (["--show", "nowhere.jsonl", "--threads", "2"], "--threads has no effect"),
        (["--show", "nowhere.jsonl", "--quick"], "--quick has no effect"),
        (["--processor-time", "--threads", "2"], "processor time of 2 threads"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_cannot_be_honoured_is_refused_by_name(words, message, capsys):
    threads = torch.get_num_threads()
    try:
        assert main(["--quick", *words] if "--show" not in words else words) == 2
    finally:
        torch.set_num_threads(threads)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{", "[]\n", json.dumps({"kind": "run", "run": "a"})])
def test_another_file_is_not_shown(tmp_path, capsys, text):
    path = tmp_path / "other.jsonl"
    path.write_text(text)
    assert main(["--show", str(path)]) == 2
    assert "not a file of this command" in capsys.readouterr().err
