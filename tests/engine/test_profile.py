"""What was measured in one process is known in the next, and nothing else is taken for it."""

import json

import pytest

from paceline.core.step import PhaseSeconds
from paceline.engine.controller import Controller
from paceline.engine.costs import StepCosts, StepWork
from paceline.engine.knowledge import MAX_DRAFT_TOKENS, Knowledge
from paceline.engine.profile import (
    VERSION,
    ProfileError,
    is_profile,
    profile_folder,
    profile_path,
    read_profile,
    write_profile,
)
from tests.engine.machine import Machine

CONDITIONS = {"machine": "a machine", "model": "a model", "number of threads": "2"}
CHEAP = dict(growth=0.05, draft=0.05, missed=0.002)


def learnt(acceptance=0.9):
    """What is known after some requests on an imagined machine."""
    known = Knowledge()
    Machine(Controller(rows=1, knowledge=known), **CHEAP).serve(lambda *_: acceptance, num_tokens=256, requests=4)
    return known


def again(known):
    """The same, through JSON."""
    fresh = Knowledge()
    fresh.load(json.loads(json.dumps(known.as_record())))
    return fresh


def test_costs_and_acceptance_are_the_same_after_a_round_trip():
    known = learnt()
    known.costs.refresh()
    known.costs.planning = 0.0  # of this process
    found = again(known)
    nodes = list(range(MAX_DRAFT_TOKENS + 1))
    pairs = list(zip(found.by_depth(1, nodes, found.greedy), known.by_depth(1, nodes, known.greedy), strict=True))
    assert len(pairs) == MAX_DRAFT_TOKENS + 1
    assert all(one.break_even == pytest.approx(other.break_even) for one, other in pairs)
    assert all(one.expected == pytest.approx(other.expected) for one, other in pairs)
    for work in (StepWork(1, 1), StepWork(1, 3, 2, 2), StepWork(4, 20, 4, 16)):
        assert found.costs(work) == pytest.approx(known.costs(work))
    assert found.costs.catching_up(40) == known.costs.catching_up(40) and found.greedy.rates == pytest.approx(
        known.greedy.rates
    )
    assert again(found).as_record() == found.as_record()


def test_a_controller_with_a_profile_drafts_at_once_as_far_as_pays():
    def first_depth(known):
        plan = Controller(rows=1, knowledge=known)
        machine = Machine(plan, **CHEAP).serve(lambda *_: 0.9, num_tokens=16)
        return machine.depths[0][0], plan.costs()

    depth, costs = first_depth(again(learnt()))
    guessed, _ = first_depth(Knowledge())
    assert depth >= 5 and depth != guessed
    assert costs[0].times_measured > 1 and costs[depth].times_measured > 1
    useless, _ = first_depth(again(learnt(0.0)))
    assert useless == 0


def test_what_was_learnt_goes_on_from_there():
    known = again(learnt(0.9))
    Machine(Controller(rows=1, knowledge=known), **CHEAP).serve(lambda *_: 0.0, num_tokens=256, requests=24)
    assert known.greedy.rates[0] < 0.3


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: record.pop("costs"),
        lambda record: record.pop("acceptance"),
        lambda record: record["costs"].pop("level"),
        lambda record: record["costs"].update(level=0.0),
        lambda record: record["costs"].update(level=float("nan")),
        lambda record: record["costs"].update(score=[[1, 0, -1.0, 3]]),
        lambda record: record["costs"].update(draft=[[1, 2]]),
        lambda record: record["costs"].update(rest=7),
        lambda record: record["costs"].update(rest=[[1, -1, 1.0, 3]]),
        lambda record: record["acceptance"].pop("sampled"),
        lambda record: record["acceptance"]["greedy"].update(asked=-1),
        lambda record: record["acceptance"]["greedy"].update(accepted=[9e9] * MAX_DRAFT_TOKENS),
        lambda record: record["acceptance"]["sampled"].update(accepted=[0.0], tried=[0.0]),
    ],
)
def test_a_damaged_record_is_refused_and_changes_nothing(damage):
    record = learnt().as_record()
    damage(record)
    known = learnt()
    before = known.as_record()
    with pytest.raises(ValueError, match="draft"):
        known.load(record)
    assert known.as_record() == before


def test_a_profile_is_read_under_its_own_conditions_alone(tmp_path):
    path, known = tmp_path / "folder" / "a.json", learnt()
    write_profile(path, CONDITIONS, known)
    assert is_profile(path) and [file.name for file in path.parent.iterdir()] == ["a.json"]
    found = Knowledge()
    read_profile(path, CONDITIONS, found)
    assert found.costs.level == known.costs.level
    untouched = Knowledge()
    with pytest.raises(ProfileError, match=r"another machine \(there a machine, here another\), another model"):
        read_profile(path, {**CONDITIONS, "machine": "another", "model": "other weights"}, untouched)
    assert untouched.costs.level == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is damaged"),
        ("[1]", "is no profile"),
        ('{"kind": "something"}', "is no profile"),
        (json.dumps({"kind": "paceline profile", "version": VERSION + 1}), "version 4 of the format, and this is 3"),
        (json.dumps({"kind": "paceline profile", "version": VERSION, "conditions": 3}), "another machine"),
        (
            json.dumps({"kind": "paceline profile", "version": VERSION, "conditions": CONDITIONS, "knowledge": [1]}),
            "is damaged",
        ),
        (None, "cannot be read"),
    ],
)
def test_other_files_are_refused_with_the_reason(text, said, tmp_path):
    path = tmp_path / "a.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ProfileError, match=said):
        read_profile(path, CONDITIONS, Knowledge())


def test_every_condition_has_a_file_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_PROFILES", str(tmp_path))
    paths = {profile_path({**CONDITIONS, name: "other"}) for name in CONDITIONS} | {profile_path(CONDITIONS)}
    assert len(paths) == 1 + len(CONDITIONS) and {path.parent for path in paths} == {tmp_path}


def test_profiles_are_in_the_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("PACELINE_PROFILES", raising=False)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "own"))
    assert profile_folder() == tmp_path / "own" / "profiles"
    monkeypatch.delenv("PACELINE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert profile_folder() == tmp_path / "xdg" / "paceline" / "profiles"


def test_costs_of_steps_timed_side_by_side_are_their_lower_quartiles():
    steps = []
    for depth in range(4):
        for number in range(8):
            slow = 5.0 if number % 3 == 0 else 1.0
            seconds = PhaseSeconds(draft=0.001 * depth, score=0.01 * (1 + 0.1 * depth), decide=0.001, rest=0.0005)
            steps.append((StepWork(1, 1 + depth, depth, depth), PhaseSeconds(score=slow * seconds.score) + seconds))
    costs = StepCosts.fitted(steps, growth=0.08)
    for depth in range(4):
        found = costs.seconds(StepWork(1, 1 + depth, depth, depth))
        assert found.score == pytest.approx(0.02 * (1 + 0.1 * depth), rel=0.001)
        assert found.rest == pytest.approx(0.0015, rel=0.001) and found.draft == pytest.approx(0.001 * depth, rel=0.001)
    assert costs.score.measured(1) == 8 and costs.num_observed == 32
