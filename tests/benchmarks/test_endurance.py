"""Nothing grows over thousands of steps, neither memory nor what is alive nor what was compiled; and growth is seen."""

import pytest

from benchmarks import endurance
from benchmarks.__main__ import main
from benchmarks.endurance import Growth, Snapshot, endure, growth_of
from paceline.api import embedded_pair, load
from paceline.api.prompts import encode
from paceline.bench.suites import prompts_of
from tests.api.checkpoints import pair

PROMPTS = [[at * 7 % 300 + 1 for at in range(length)] for length in (20, 33, 8, 50)]
MIB = 1 << 20


def tiny_pair():
    return [load(path, device="cpu") for path in (pair().target, pair().draft)]


def snapshots(count=10, **changes):
    """Snapshots of a process that stops growing after the second, but for ``changes``: by how much more at each."""
    still = dict(resident=100 * MIB, tensors=20, objects=9000, graphs=1)
    return [
        Snapshot(
            steps=100 * at,
            seconds=float(at),
            tokens=200 * at,
            **{name: value + at * changes.get(name, 0) + (50 * MIB if at < 2 else 0) for name, value in still.items()},
        )
        for at in range(count)
    ]


def test_a_process_that_stops_growing_after_its_warm_up_has_no_fault():
    assert growth_of(snapshots()) == Growth(mib=0, tensors=0, objects=0, graphs=0)
    assert growth_of(snapshots()).faults() == []


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("resident", MIB, "grew by 6.0 MiB"),
        ("tensors", 1, "more tensors"),
        ("objects", 50, "more objects"),
        ("graphs", 1, "7 graphs were compiled"),
    ],
)
def test_whatever_grows_is_named(name, more, words):
    (fault,) = growth_of(snapshots(**{name: more})).faults()
    assert words in fault


def test_too_few_snapshots_are_refused():
    with pytest.raises(ValueError, match="4 snapshots: give at least 5"):
        growth_of(snapshots(4))
    with pytest.raises(ValueError, match="9 snapshots at 3 steps"):
        endure(*tiny_pair(), PROMPTS, steps=3, snapshots=9)


@pytest.mark.slow
def test_rows_end_and_are_given_away_while_it_snapshots():
    seen = []
    found = endure(*tiny_pair(), PROMPTS, steps=60, snapshots=6, progress=seen.append)
    assert [one.steps for one in found] == [10, 20, 30, 40, 50, 60] and found == seen
    tokens = found[-1].tokens
    assert tokens > 60 * 4, "four rows gain a token a step each, and drafts bring more"
    assert all(one.resident > 0 and one.tensors > 0 and one.graphs >= 0 for one in found)


@pytest.mark.slow
def test_a_leak_is_seen(monkeypatch):
    kept = []
    advance = endurance.Engine.advance

    def leaking(self):
        advance(self)
        kept.append(self.decoder.batch.length.clone())

    monkeypatch.setattr(endurance.Engine, "advance", leaking)
    assert any("more tensors" in fault for fault in growth_of(endure(*tiny_pair(), PROMPTS, steps=60)).faults())


@pytest.mark.slow
def test_the_command_prints_every_snapshot_and_fails_where_something_grew(monkeypatch, capsys):
    words = [
        "endurance",
        "--target",
        str(pair().target),
        "--draft",
        str(pair().draft),
        "--steps",
        "40",
        "--snapshots",
        "5",
    ]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "after the warm-up" in out
    monkeypatch.setattr(endurance, "growth_of", lambda found: Growth(mib=9.0, tensors=0, objects=0, graphs=0))
    assert main(words) == 1 and "grew by 9.0 MiB" in capsys.readouterr().out
    assert main(["endurance", "--target", str(pair().target)]) == 2 and "give both" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_ten_thousand_steps_of_a_tiny_pair_leave_nothing_behind(temperature):
    assert growth_of(endure(*tiny_pair(), PROMPTS, temperature=temperature)).faults() == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_steps_of_the_embedded_pair_leave_nothing_behind():
    target, draft = (load(path, dtype="bfloat16", device="cpu") for path in embedded_pair())
    prompts = [encode(target, text) for text in prompts_of("mixed", 8, seed=0)]
    assert growth_of(endure(target, draft, prompts)).faults() == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_compiled_step_is_compiled_once():
    found = endure(*tiny_pair(), PROMPTS, steps=2000, compiled=True)
    assert found[0].graphs > 0 and growth_of(found).faults() == []
