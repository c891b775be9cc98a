"""The choice among several drafters, on imagined machines."""

import pytest

from paceline.engine.candidates import CandidatePlan
from paceline.engine.controller import Controller
from tests.engine.machine import Machine

COPIES = dict(growth=0.05, draft=[0.01, 0.08], missed=0.002)  # a lookup, and a draft model


def plan_of(rows, count=2):
    return CandidatePlan([Controller(rows=rows) for _ in range(count)])


def serve(accepts, *, rows=1, num_tokens=256, requests=6, plan=None, **options):
    plan = plan or plan_of(rows, len(accepts))
    return Machine(plan, rows=rows, **{**COPIES, **options}).serve(accepts, num_tokens=num_tokens, requests=requests)


def alone(number, accepts, *, rows=1, num_tokens=256, requests=6):
    options = {**COPIES, "draft": COPIES["draft"][number]}
    machine = Machine(Controller(rows=rows), rows=rows, **options)
    return machine.serve(accepts[number], num_tokens=num_tokens, requests=requests)


CHANCES = {"the lookup pays": (0.9, 0.7), "the model pays": (0.1, 0.85), "both pay": (0.8, 0.8)}


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("chances", CHANCES)
def test_it_comes_near_the_better_drafter(chances, rows):
    accepts = [lambda *_, chance=chance: chance for chance in CHANCES[chances]]
    both = serve(accepts, rows=rows)
    best = max(alone(number, accepts, rows=rows).speedup for number in range(2))
    assert both.speedup >= (0.82 if chances == "both pay" else 0.93) * best  # nearly equal ones are told apart slowly


@pytest.mark.parametrize("rows", [1, 4])
def test_where_none_pays_little_is_lost(rows):
    assert serve([lambda *_: 0.0, lambda *_: 0.02], rows=rows).speedup >= 0.97


def test_the_drafter_changes_with_the_text():
    """Copies up to 600 tokens, then what only the model predicts."""
    accepts = [lambda _, at: 0.95 if at < 600 else 0.0, lambda _, at: 0.3 if at < 600 else 0.85]
    machine = serve(accepts, num_tokens=1200, requests=1)
    best = [alone(number, accepts, num_tokens=1200, requests=1).speedup for number in range(2)]
    assert machine.speedup > 1.1 * max(best)
    assert min(machine.by_drafter) > 60


def test_what_is_known_of_each_serves_the_next_requests():
    accepts = [lambda *_: 0.1, lambda *_: 0.9]
    plan = plan_of(1)
    serve(accepts, plan=plan)
    later = serve(accepts, plan=plan, num_tokens=64, requests=1)
    assert later.by_drafter[1] > 5 * later.by_drafter[0]


def test_a_drafter_that_no_request_chooses_is_not_tried():
    """Though it was tried so little that it might be the better one by now."""
    accepts = [lambda *_: 0.1, lambda *_: 0.6]
    plan = CandidatePlan([Controller(rows=1), Controller(rows=1)], origins=[[0], [1]])
    serve(accepts, plan=plan, requests=2)
    before = plan.steps_by_drafter[0]
    served = serve(accepts, plan=plan, requests=20, drafters=frozenset({1}))
    assert plan.steps_by_drafter[0] == before and served.by_drafter[1] > 0


def test_one_controller_or_different_lengths_are_refused():
    with pytest.raises(ValueError, match="1 controllers: give at least 2, of one draft length"):
        CandidatePlan([Controller(rows=1)])
    with pytest.raises(ValueError, match="of one draft length"):
        CandidatePlan([Controller(rows=1), Controller(rows=1, max_draft_tokens=3)])
