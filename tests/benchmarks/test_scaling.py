"""Points on the axes are the steps they say; figures follow from the file; lengths are counted as rows hold them."""

import json
from dataclasses import asdict
from functools import partial

import pytest
import torch

from benchmarks import study
from benchmarks.rates import rates_of
from benchmarks.scaling import Scaling, identify_axis, points_of
from benchmarks.scaling_calls import (
    CHAIN,
    TREE,
    Axis,
    Point,
    Step,
    axes_of,
    axis_turns,
)
from benchmarks.scaling_ragged import CHAT, EVEN, MIXES, ONE_LONG, Mix, measure_ragged, occupy
from benchmarks.study import Timing, time_cells
from paceline.api import load
from paceline.api.loading import runnable
from paceline.bench.raw import RUN, RawFile
from paceline.hardware.roofline import bound
from paceline.models.work import forward_work
from tests import tiny
from tests.api.checkpoints import pair
from tests.benchmarks.command import RATES, measured


def test_axes_move_one_count_and_hold_the_others():
    rows, nodes, context = axes_of(*[[2**at for at in range(7)]] * 2, [128 * 2**at for at in range(7)])
    assert [(point.nodes, point.context) for point in rows.points] == [(1, 128)] * 7
    assert [point.rows for point in rows.points] == [1, 2, 4, 8, 16, 32, 64]
    assert {(point.rows, point.context) for point in nodes.points} == {(1, 128)}
    assert [point.nodes for point in nodes.points if point.shape == CHAIN] == [1, 2, 4, 8, 16, 32, 64]
    assert [point.nodes for point in nodes.points if point.shape == TREE] == [4, 8, 16, 32, 64]
    assert {(point.rows, point.nodes) for point in context.points} == {(1, 1)} and len(context.points) == 7


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("point", "depths"),
    [
        (Point(rows=2, nodes=1, context=5), [0]),
        (Point(rows=2, nodes=4, context=5), [0, 1, 2, 3]),
        (Point(rows=3, nodes=7, context=9, shape=TREE), [0, 1, 1, 2, 2, 2, 2]),
        (Point(rows=1, nodes=8, context=9, shape=TREE), [0, 1, 1, 2, 2, 2, 2, 3]),
    ],
    ids=str,
)
def test_a_point_is_the_step_that_it_says(point, depths):
    target = tiny.target()[1]
    prepared = Step(point, target)
    tree = prepared._tree
    assert tree.tokens.shape == (point.rows, point.nodes) and tree.valid.all()
    assert tree.depth.tolist() == [depths] * point.rows and max(depths) == point.depth == tree.max_depth
    assert prepared.decoder.cache.length.tolist() != [point.context - 1] * point.rows, "a step was taken to warm up"
    for _ in range(3):
        prepared.rewind()
        assert prepared.decoder.cache.length.tolist() == [point.context - 1] * point.rows
        assert prepared.decoder.batch.active.all()
        prepared.forward()
        assert prepared.decoder.cache.length.tolist() == [point.context - 1] * point.rows, "a forward commits nothing"
        prepared.step()
        assert all(length >= point.context for length in prepared.decoder.cache.length.tolist())
    slot = target.slot_bytes
    assert prepared.used_bytes == point.rows * (point.context - 1 + point.nodes) * slot
    assert prepared.cache_bytes == (point.rows + 1) * (point.context + point.depth + 2 + point.nodes) * slot


@pytest.mark.slow
def test_points_take_turns_and_what_the_file_holds_is_not_timed_again(tmp_path, monkeypatch):
    target = runnable(load(pair().target, device="cpu"))
    raw = RawFile(tmp_path / "raw.jsonl")
    run = raw.begin({"a": 1}, dict)
    assert raw.begin({"a": 1}, None) == run and len(raw.records) == 1
    axis = Axis(name="rows", points=tuple(Point(rows=count, nodes=2, context=6) for count in (1, 2)))
    scripted = []

    def in_turn(calls, *, before, repeats, **_):
        scripted.append(list(calls))
        for name, call in calls.items():
            before[name]()
            call()
        return {name: (float(at + 1),) * repeats for at, name in enumerate(calls)}

    def measure():
        identify = partial(identify_axis, run)
        time_cells([axis], lambda axis: axis_turns(axis, target), identify=identify, timing=Timing(repeats=3), raw=raw)

    monkeypatch.setattr(study, "time_in_turn", in_turn)
    measure()
    measure()
    assert scripted[0] == ["control", "forward 0", "step 0", "forward 1", "step 1"]
    assert len(scripted) == 2, "the step differed from itself, so it is timed again"
    one = raw.records[1]
    assert (one["control"], one["void"]) == (3 / 1, True)
    assert [(found["forward"], found["step"]) for found in one["found"]] == [
        ([2.0] * 3, [3.0] * 3),
        ([4.0] * 3, [5.0] * 3),
    ]
    raw.append({**one, "void": False})
    measure()
    assert len(scripted) == 2


@pytest.mark.slow
def test_the_command_measures_everything_and_shows_its_file_again(tmp_path, capsys, still_machine):
    records, out = measured("scaling", tmp_path / "scaling.jsonl", capsys)
    assert all(title in out for title in ("ragged lengths", "a prompt in one forward", "time to the first token"))
    assert "4 tree" in out and "with the draft" in out and (tmp_path / "scaling.svg").read_text().startswith("<svg")
    assert [record["kind"] for record in records] == [RUN, "first", "prefill", *["axis"] * 3, *["ragged"] * len(MIXES)]
    first = records[1]
    assert first["num_tokens"] == 9 and all(len(seconds) == 2 for seconds in first["seconds"].values())
    context = records[5]["points"]
    assert [point["context"] for point in context] == [8, 600], "beyond what the model was made for"


def test_figures_stand_beside_the_floor(tmp_path):
    lm = tiny.native(tiny.llama(dtype=torch.bfloat16))
    work = forward_work(lm)
    run = {"kind": RUN, "run": "r", "conditions": {}, "notes": {"work": asdict(work), "rates": asdict(RATES)}}
    point = Point(rows=2, nodes=3, context=50)
    found = dict(forward=[2e-3, 4e-3, 3e-3], step=[4e-3, 8e-3, 6e-3], cache_bytes=9, used_bytes=8, resident_bytes=7)
    axis = dict(kind="axis", run="r", axis="rows", points=[asdict(point)], control=1.0, void=False, found=[found])
    records = json.loads(json.dumps([run, axis]))
    assert rates_of(records[0]) == RATES
    (line,) = points_of(records[1], work, RATES)
    assert line.point == point and (line.forward.value, line.step.value, line.rest) == (3e-3, 6e-3, 0.5)
    assert line.floor == bound(work, RATES, rows=2, nodes=3, slots=50)
    assert line.share == pytest.approx(line.floor.seconds / 3e-3)
    shown = Scaling(output=tmp_path / "scaling.jsonl", report=True)
    assert len(shown.sections(records[0], records)) == 1


def test_rows_are_reused_as_their_requests_end():
    assert list(occupy([(2, 4), (3, 4), (1, 3)], rows=2)) == [[2, 3], [3, 1], [0, 2]]
    assert list(occupy([(5, 6)], rows=2)) == [[5, 0]]


@pytest.mark.slow
def test_even_lengths_waste_little_and_ragged_ones_are_ragged():
    target = runnable(load(pair().target, device="cpu"))
    even, chat, long = (measure_ragged(mix, target) for mix in (EVEN, CHAT, ONE_LONG))
    waste = [found["reserved_slots"] / found["used_slots"] for found in (even, chat, long)]
    assert 1 < waste[0] < 1.5 and waste[1] > 2 and waste[2] > 2
    for found in (even, chat, long):
        assert found["used_slots"] <= found["most_used_slots"] <= found["touched_slots"] <= found["reserved_slots"]
        assert found["slot_bytes"] == target.slot_bytes
    size, written = long["cache_bytes"], long["touched_slots"] * target.slot_bytes
    assert written / 2 < long["resident_bytes"] < size / 2, "what was never written takes no memory"


def test_sequences_are_cut_and_never_empty():
    mix = Mix(name="wild", rows=2, num_requests=500, prompt=50, answer=50, spread=3.0, longest=200)
    sequences = mix.sequences()
    assert all(1 <= prompt < end <= 200 for prompt, end in sequences) and max(end for _, end in sequences) == 200
    assert sequences == mix.sequences()
