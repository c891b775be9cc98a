import json

import pytest

from benchmarks.study import Timing
from benchmarks.verifier_ranking import CONTROL, PLAIN, Condition, Way, all_ways, measure_conditions, rankings_of
from paceline.api import build_drafter, load
from paceline.bench.raw import RawFile, read_records
from paceline.verifiers import VERIFIERS
from tests.api.checkpoints import pair
from tests.benchmarks.command import measured

CONDITION = Condition(temperature=0.8, top_p=0.95)
WAYS = all_ways(chains=[(1, 1)], trees=[(2, 1)])


def measure(path, **changes):
    target = load(pair().target)
    options = dict(
        target=target,
        draft=build_drafter(load(pair().draft), target=target).lm,
        prompts=[target.tokenizer.encode(text) for text in ("import os", "x = 1\n")],
        num_seeds=2,
        num_tokens=8,
        seed=3,
        clock=Timing().clock,
    )
    raw = RawFile(path)
    run = raw.begin({}, dict)
    return measure_conditions([CONDITION], WAYS, raw=raw, run=run, **{**options, **changes})


def test_every_lossless_verifier_competes_on_what_it_is_meant_for():
    ways = all_ways()
    lossless = {name for name in VERIFIERS.builtin if VERIFIERS.find(name).lossless}
    assert {way.verifier for way in ways} == lossless - {"match"}  # coupled with other draws
    for way in ways:
        assert VERIFIERS.find(way.verifier).branches or max(way.shape) == 1


def test_every_way_decodes_every_text_once_and_is_not_measured_twice(tmp_path):
    path = tmp_path / "raw.jsonl"
    measure(path)
    records = read_records(path)
    sides = records[-1]["sides"]
    assert list(sides) == [PLAIN, *map(str, WAYS), CONTROL]
    assert all(side["tokens"] == [8] * 4 and len(side["seconds"]) == 4 for side in sides.values())
    assert sides[PLAIN]["steps"] == [8] * 4
    assert any(sum(side["steps"]) < 32 for name, side in sides.items() if name not in (PLAIN, CONTROL))
    sound = [{**record, "void": False} if "void" in record else record for record in records]
    path.write_text("".join(json.dumps(record) + "\n" for record in sound), encoding="utf-8")
    measure(path)
    assert len(read_records(path)) == len(records)


def scripted(void, factor=1.0):
    """One condition in which plain decoding takes 2 s for 10 tokens and everything else less."""
    sides = {PLAIN: (2.0, 10), "coupled chain of 2": (1.0, 5), "block chain of 2": (0.8, 4), CONTROL: (2.0, 10)}
    texts = {
        name: {"seconds": [factor * seconds] * 3, "tokens": [10] * 3, "steps": [steps] * 3}
        for name, (seconds, steps) in sides.items()
    }
    contest = {"temperature": 1.0, "top_p": 1.0}
    return {"kind": "contest", "run": "a", "contest": contest, "void": void, "sides": texts}


RUN = {
    "kind": "run",
    "run": "a",
    "conditions": {"ways": [{"verifier": name, "shape": [1, 1]} for name in ("coupled", "block")]},
}


def test_figures_are_ratios_of_whole_times_and_counts():
    (ranking,) = rankings_of(RUN, [scripted(void=False)])
    block = ranking.best("block")
    assert block == Way(verifier="block", shape=(1, 1))
    assert ranking.tokens_per_step(block).value == 2.5 and ranking.speedup(block).value == pytest.approx(2.5)
    assert ranking.over_coupled(block).value == pytest.approx(1.25)
    assert ranking.over_coupled(ranking.best("coupled")) is None
    assert ranking.tokens_per_second(PLAIN).value == 5.0 and ranking.speedup(CONTROL).value == 1.0
    assert ranking.best("spectr") is None


def test_a_sound_measurement_stands_before_a_void_one():
    for records in ([scripted(True), scripted(False, 2.0)], [scripted(False, 2.0), scripted(True)]):
        (ranking,) = rankings_of(RUN, records)
        assert not ranking.void and ranking.tokens_per_second(PLAIN).value == 2.5
    (ranking,) = rankings_of(RUN, [scripted(True)])
    assert ranking.void


def test_several_conditions_are_added_up():
    other = {**scripted(False, 2.0), "contest": {"temperature": 0.5, "top_p": 1.0}}
    one, two, both = rankings_of(RUN, [scripted(False), other])
    assert [one.name, two.name, both.name] == ["T=1", "T=0.5", "all together"]
    assert both.tokens_per_second(PLAIN).value == pytest.approx(20 / 6)
    assert both.tokens_per_step(both.best("block")).value == 2.5


@pytest.mark.slow
def test_the_command_writes_figures_a_picture_and_tables(tmp_path, capsys, still_machine):
    _, out = measured("verifier-ranking", tmp_path / "ranking.jsonl", capsys)
    assert all(str(way.verifier) in out for way in all_ways()) and "T=1" in out
    assert (tmp_path / "ranking.svg").read_text(encoding="utf-8").startswith("<svg")
