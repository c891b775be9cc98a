"""Every verifier is timed wherever it applies, on trees that drafters could have drawn."""

import csv

import pytest
import torch

from benchmarks.verifier_calls import TREE, Calls, Cell
from benchmarks.verifier_cost import PLAIN_PICK, VerifierCost, figures_of, name_of, turns_of
from paceline.bench.timing import read_rate, time_in_turn
from paceline.core.tree import Draw
from paceline.verifiers import VERIFIERS
from tests.benchmarks.command import measured, run

GREEDY = {"coupled, T = 0", "rejection, T = 0"}
NAMES = {*VERIFIERS.builtin, *GREEDY}
CHAINS_ALONE = {name for name in VERIFIERS.builtin if not VERIFIERS.find(name).branches} | {"rejection, T = 0"}
EVERY = [*((name, 1.0) for name in VERIFIERS.builtin), ("coupled", 0.0), ("rejection", 0.0)]


def cell(k=3, rows=2, vocab=64):
    return Cell(num_rows=rows, vocab_size=vocab, num_draft_tokens=k)


def measure_cell(cell, repeats=2):
    turns = turns_of(Calls(cell), EVERY)
    return turns.found(time_in_turn(turns.calls, repeats=repeats, seconds=0))


@pytest.mark.parametrize("k", [1, 3, 0])
def test_every_verifier_is_timed_where_it_applies_and_refused_nowhere_else(k):
    found = measure_cell(cell(k))
    refused = set() if k else CHAINS_ALONE
    assert found["refused"] == dict.fromkeys(sorted(refused, key=list(found["refused"]).index), "takes chains alone")
    assert found["timed"].keys() == {PLAIN_PICK, f"{PLAIN_PICK}, T = 0", *NAMES} - refused
    assert all(len(line["seconds"]) == 2 and min(line["seconds"]) > 0 for line in found["timed"].values())
    assert all(1 <= line["tokens_per_step"] <= 5 for line in found["timed"].values())


@pytest.mark.parametrize("k", [1, 4, 0])
def test_trees_are_whole_and_carry_distributions_where_the_draw_has_them(k):
    made = Calls(cell(k, rows=3))
    batch = made._batch(1.0)
    for draw in Draw:
        tree = made._grow(batch, draw)
        assert tree.num_nodes == made.topology.num_drafted + 1 and tree.valid.all() and tree.chain == bool(k)
        assert (tree.draw == int(draw)).all()
        if draw in (Draw.FIXED, Draw.SHARED):
            assert tree.probs is None
            continue
        inner = len({node for node in tree.parents[0].tolist() if node >= 0})
        assert tree.probs.shape == (3, inner, 64)
        drawn_from = tree.probs.gather(1, tree.source[:, 1:, None].expand(-1, -1, 64))
        depth = tree.depth[0, 1:] - 1
        torch.testing.assert_close(drawn_from, made.draft.softmax(-1)[:, depth])


def test_the_distributions_share_about_seventy_percent_of_their_mass():
    made = Calls(cell(8, rows=4, vocab=4096))
    shared = torch.minimum(made.draft.softmax(-1), made.logits.softmax(-1)).sum(-1)
    assert shared.mean() == pytest.approx(0.7, abs=0.03)


def test_the_floor_counts_the_logits_and_the_distributions_that_were_given():
    made, row = Calls(cell()), 2 * 64 * 4
    for name, num_probs in {"coupled": 0, "match": 0, "rejection": 3, "traversal": 3}.items():
        call = made.call(name, 1.0)
        assert (call.logits_bytes, call.draft_probs_bytes) == (4 * row, num_probs * row), name
    assert (made.plain(1.0).logits_bytes, made.plain(1.0).draft_probs_bytes) == (row, 0)


def test_calls_take_turns_and_the_order_turns_round():
    order, now = [], iter(range(1000))
    calls = {name: (lambda name=name: order.append(name)) for name in "abc"}
    taken = time_in_turn(calls, repeats=2, seconds=8, clock=lambda: next(now))
    assert "".join(order) == "cba" + "abc" + "cba" + "abc"  # a warm-up, two repeats, and one for the seconds
    assert taken == {name: (1, 1, 1) for name in "abc"}


def test_memory_is_read_at_some_speed():
    assert 1e6 < read_rate(working_set=1 << 20, reads=2) < 1e13


def test_figures_follow_from_the_records():
    record = {"kind": "verifier", "run": "r", **measure_cell(cell(), repeats=7)}
    run = {"kind": "run", "run": "r", "notes": {"bytes_per_second": 1e9}}
    figures = {line.name: line for line in figures_of([run, record])}
    line, timed = figures["rejection"], record["timed"]["rejection"]
    assert line.time.value == pytest.approx(1000 * sorted(timed["seconds"])[3])
    assert line.floor == pytest.approx(1000 * (4 + 3) * 2 * 64 * 4 / 1e9)
    assert figures[PLAIN_PICK].picks == figures[name_of(PLAIN_PICK, 0.0)].picks == 1


def test_the_command_keeps_its_file_shows_it_again_and_shows_a_part(tmp_path, capsys, still_machine):
    path = tmp_path / "cost.jsonl"
    records, out = measured("verifier-cost", path, capsys)
    assert all(name in out for name in (*NAMES, PLAIN_PICK, "takes chains alone"))
    assert [record["kind"] for record in records] == ["run"] + ["verifier"] * 6
    rows = list(csv.DictReader(path.with_suffix(".csv").read_text().splitlines()))
    assert {row["verifier"] for row in rows} == {PLAIN_PICK, f"{PLAIN_PICK}, T = 0", *NAMES}
    assert run("verifier-cost", "--report", "--output", path, "--rows", 3) == 0
    out = capsys.readouterr().out
    assert "3 rows, vocabulary 512" in out and "1 row, vocabulary" not in out
    assert run("verifier-cost", "--report", "--output", path, "--vocab", 64) == 2
    assert "1 x 512, 3 x 512" in capsys.readouterr().err


def test_many_rows_are_for_the_common_verifiers(tmp_path):
    output = tmp_path / "cost.jsonl"
    work = {(cell.num_rows, cell.vocab_size): timed for cell, timed in VerifierCost(output=output).work()}
    assert {name_of(*timed) for timed in work[32, 131072]} == {"coupled", "rejection", *GREEDY}
    assert {name_of(*timed) for timed in work[8, 4096]} == NAMES
    assert {cell.shape for cell, _ in VerifierCost(output=output, quick=True).work()} >= {TREE, "k = 8"}
