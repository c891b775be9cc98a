"""Batches whose rows last for known numbers of tokens, and of which no other request takes the place."""

import random
from itertools import pairwise, product

import pytest

from paceline.core.plan import Fixed
from paceline.engine.closed_batch import GATHERING, Refills, _End, _in_order, end_together
from paceline.engine.controller import Controller
from paceline.engine.draft_work import DraftWork, StepDrafts
from paceline.engine.exploration import LESSONS
from paceline.engine.goodput import Goodput
from paceline.engine.knowledge import Knowledge
from paceline.engine.row_state import RowState
from paceline.engine.runner import Runner
from paceline.engine.scheduler import Scheduler
from tests.drafters.test_none import tiny as no_drafter
from tests.engine.machine import Machine
from tests.engine.test_controller import MACHINES
from tests.harness import decoder_for, request

MIXED = (0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.8)  # acceptance of each row


def cost_of(rows, nodes, deepest, drafted):
    return 1 + 0.2 * (rows - 1) + 0.06 * (nodes - 1) + 0.08 * deepest + 0.01 * (drafted - deepest)


def work_of(acceptance, most):
    """Of chains of which each token is accepted with this chance."""
    tokens = [1.0]
    for depth in range(1, most + 1):
        tokens.append(tokens[-1] + acceptance**depth)
    return [DraftWork(gained, 0, 1 + depth) for depth, gained in enumerate(tokens)]


def cost_until_the_end(depths, left, work):
    """What ``depths`` cost: moment by moment, those that have not ended."""
    ends = {row: max(1.0, left[row] / work[row][depth].tokens) for row, depth in depths.items()}
    moments, cost = [0.0, *sorted({*ends.values()})], 0.0
    for start, stop in pairwise(moments):
        drafts = {row: depth for row, depth in depths.items() if ends[row] >= stop}
        nodes = sum(work[row][depth].nodes for row, depth in drafts.items())
        cost += (stop - start) * cost_of(len(drafts), nodes, max(drafts.values()), sum(drafts.values()))
    return cost


def rows_of(left, pool=None):
    pool = pool or Knowledge().greedy
    return {
        row: RowState.of(request([1], max_tokens=most), pool=pool, max_depth=8, plain=False)
        for row, most in left.items()
    }


def test_no_other_depths_are_much_faster():
    """Against all of them; what is promised is what they cost, rows that end at nearly the same time apart."""
    generator = random.Random(3)
    for _ in range(40):
        left = {row: generator.choice([64, 64, generator.randint(1, 64)]) for row in range(3)}
        work = {row: work_of(generator.uniform(0.2, 0.95), 4) for row in left}
        depths, speedup = end_together(rows_of(left), work, cost_of)
        plain = cost_until_the_end(dict.fromkeys(left, 0), left, work)
        assert speedup == pytest.approx(plain / cost_until_the_end(depths, left, work), rel=0.05)
        tried = (dict(zip(left, chosen, strict=True)) for chosen in product(range(5), repeat=3))
        best = min(cost_until_the_end(one, left, work) for one in tried)
        assert speedup >= 0.92 * plain / best and speedup >= 1


def test_a_drafter_runs_as_deep_as_any_row_goes():
    step, work = StepDrafts(), [DraftWork(1, 0, 1), DraftWork(1.6, 0.24, 2), DraftWork(1.9, 0.5, 3)]
    for depth in (1, 2, 2, 0):
        step.add_row(work[: depth + 1], depth)
    assert (step.rows, step.nodes, step.drafted, step.deepest) == (4, 9, 5, 2) and step.tokens == pytest.approx(6.4)


@pytest.mark.parametrize("ends_early", [False, True])
def test_the_work_of_a_step_is_that_of_the_search_for_the_most_tokens(ends_early):
    """Which adds it up token by token: with the same rows and depths, the same goodput and cost."""
    goodput = Goodput(Knowledge(growth=0.02), range(9), num_unverified=2, ends_early=ends_early)
    rows = rows_of({row: 64 for row in range(4)}, pool=goodput.knowledge.greedy)
    for row, state in rows.items():
        state.counts.add(num_accepted=2 * row, depth=8, keep=1.0)
        state.counts.add(num_accepted=0, depth=0, keep=1.0)  # the drafter had none
        state.expect()
    chosen, cost_of = goodput._most_tokens(rows), goodput.knowledge.costs.of
    depths = {row: chosen.depths.get(row, 0) for row in rows}
    step = goodput._step(depths, {row: goodput._work(state) for row, state in rows.items()})
    assert len(set(depths.values())) > 1 and chosen.expected == pytest.approx(step.speedup(cost_of))
    assert chosen.cost == pytest.approx(step.cost(cost_of) / cost_of(4, 4))


def test_a_chain_ends_before_a_token_that_is_worth_less_than_it_takes():
    """What further ones would take, in a larger block of a kernel, does not matter for those of the depth that pays."""

    def in_blocks(rows, nodes, deepest=0, drafted=0):
        return 1 + 0.01 * nodes + (1.5 if nodes > 4 else 0.0) + 0.02 * deepest

    step = StepDrafts()
    for node, forward in ((0.01, 0.02), (0.01, 0.0)):  # the second row shares the forwards of the first
        step.add_row(work_of(0.9, 8), 3)
        assert step.least(in_blocks) == pytest.approx((node + forward) * step.tokens / step.cost(in_blocks))

    goodput = Goodput(Knowledge(), range(9), ends_early=True)
    rows = rows_of({0: 64}, pool=goodput.knowledge.greedy)
    goodput.knowledge.costs.of = in_blocks
    rows[0].expect()
    chosen = goodput._most_tokens(rows)
    assert chosen.depths == {0: 3}
    tokens = 1 + sum(rows[0].survival[:3])
    assert chosen.least == pytest.approx(0.03 * tokens / in_blocks(1, 4, 3))


def test_rows_that_are_ahead_draft_no_more_than_they_need():
    left = {0: 60, 1: 60, 2: 20}
    work = {0: work_of(0.9, 8), 1: work_of(0.7, 8), 2: work_of(0.9, 8)}
    depths, _ = end_together(rows_of(left), work, cost_of)
    assert depths[1] > depths[0] > depths[2] == 0
    assert end_together(rows_of({0: 60, 1: 60}), {0: work_of(0.01, 8), 1: work_of(0.9, 8)}, cost_of).speedup == 1


def test_others_take_the_places_of_those_that_end_until_a_step_has_an_empty_one():
    refills = Refills()
    refills.begin(4)
    refills.step()
    assert not refills.expected
    refills.end(2)
    refills.begin(2)
    refills.step()
    assert refills.expected
    refills.end(1)
    refills.step()
    assert not refills.expected
    refills.begin(1)  # later than at once, where prompts are read in chunks
    refills.step()
    assert refills.expected


def test_nothing_is_drafted_while_others_of_a_batch_have_yet_to_begin():
    """Lessons wait for the whole batch, and a drafter that may read prompts later does; but no longer than a while."""
    one = request([1, 2, 3], max_tokens=64)

    def planned(plan, rows, **options):
        plan.admit(rows, [one] * len(rows), **options)
        return plan().num_draft_tokens

    plan = Controller(rows=4)
    assert [planned(plan, [0, 1], waiting=2), planned(plan, [2], waiting=1), planned(plan, [3])] == [0, 0, LESSONS[0]]
    plan = Controller(rows=4)
    depths = [planned(plan, [0, 1], waiting=2), *(plan().num_draft_tokens for _ in range(GATHERING))]
    assert depths == [0] * GATHERING + [LESSONS[0]], "the others do not come"
    knowledge = Knowledge()
    knowledge.exploration.skip_lessons()
    plan = Controller(rows=4, knowledge=knowledge, postpones=True)
    assert (planned(plan, [0, 1], waiting=2), plan.drafts_at_once) == (0, False)
    assert planned(plan, [2, 3]) > 0 and plan.drafts_at_once
    untimed = Controller(rows=4, timed=False)
    assert planned(untimed, [0, 1], waiting=2) == planned(Controller(rows=4, timed=False), [0, 1])


def test_a_batch_that_is_admitted_in_parts_is_not_drafted_for_in_parts(monkeypatch):
    """The runner says how many others will join."""
    decoder = decoder_for(no_drafter(None), "coupled", rows=3)
    reported, decoder.plan = [], Fixed(0)
    monkeypatch.setattr(
        Fixed, "admit", lambda self, rows, requests, *, waiting=0: reported.append((len(rows), waiting))
    )
    made = Scheduler(Runner(decoder), prefill_tokens=4)
    for first in range(3):
        made.submit(request([first, 2, 3, 4, 5], max_tokens=4))
    while not made.idle:
        made.advance()
    assert reported == [(1, 2), (1, 1), (1, 0)]


def test_the_controller_sees_whose_places_are_taken():
    plan, one = Controller(rows=2), request([1], max_tokens=32)
    plan.admit(range(2), [one] * 2)
    plan()
    seen = [plan._goodput.refills.expected]
    for ended, begun in (([0], [0]), ([1], [])):
        plan.release(ended)
        plan.admit(begun, [one] * len(begun))
        plan()
        seen.append(plan._goodput.refills.expected)
    assert seen == [False, True, False]


@pytest.mark.parametrize(
    ("options", "lasts"),
    [
        ({}, True),
        ({"stop_tokens": [3]}, False),
        ({"stop_tokens": [3], "min_tokens": 7}, False),
        ({"stop_tokens": [3], "min_tokens": 8}, True),
    ],
    ids=str,
)
def test_a_request_lasts_if_nothing_can_end_it_before(options, lasts):
    assert request([1], max_tokens=8, **options).lasts is lasts


def seconds(machine, *, lasts, num_tokens, requests=4):
    """Of batches that each have a controller of their own, which knows what the former ones have taught."""
    taken, knowledge = 0.0, Knowledge()
    for seed in range(requests):
        served = Machine(Controller(rows=8, knowledge=knowledge), rows=8, lasts=lasts, seed=seed, **machine)
        taken += served.serve(lambda row, _: MIXED[row], num_tokens=num_tokens).seconds
    return taken


def test_where_rows_are_taken_again_or_may_end_all_tokens_count_alike():
    """One row is accepted and the others are not, so that the batch ends no sooner whatever it drafts."""

    def depths(options, *, refilled=False):
        goodput = Goodput(Knowledge(growth=0.02), range(9))
        pool = goodput.knowledge.greedy
        rows = {row: RowState.of(request([1], **options), pool=pool, max_depth=8, plain=False) for row in range(4)}
        for row, state in rows.items():
            for _ in range(64):
                state.counts.add(num_accepted=0 if row else 8, depth=8, keep=1.0)
        if refilled:
            goodput.refills.end(1)
            goodput.refills.begin(1)
        return goodput.best(rows).depths

    assert depths({}) == {}
    assert depths({"stop_tokens": [3]}).keys() == depths({}, refilled=True).keys() == {0}


@pytest.mark.parametrize("num_tokens", [48, 256])
def test_a_batch_whose_end_is_known_ends_sooner(num_tokens):
    """Of rows that are accepted unequally: than where tokens of all of them count alike."""
    machine = MACHINES["nearly free"]
    assert seconds(machine, lasts=True, num_tokens=num_tokens) < 0.97 * seconds(
        machine, lasts=False, num_tokens=num_tokens
    )


@pytest.mark.parametrize("machine", MACHINES)
def test_a_batch_whose_end_is_known_is_not_slower_than_without_drafts(machine):
    served = seconds(MACHINES[machine], lasts=True, num_tokens=256, requests=6)
    plain = 6 * 256 * Machine(None, rows=8, **MACHINES[machine]).step_seconds(8)
    assert plain >= 0.95 * served


def test_the_last_row_ends_later_than_any_is_expected_to():
    """Against rows that are drawn: 8 alike, and one that needs longer than the others by far."""
    generator = random.Random(5)
    knowledge = Knowledge(growth=0.02)

    def steps_to(left, rate):
        steps = 0
        while left > 0:
            accepted = 0
            while accepted < 3 and generator.random() < rate:
                accepted += 1
            left, steps = left - 1 - accepted, steps + 1
        return steps

    for lefts in ([48] * 8, [12] * 7 + [96]):
        rows = rows_of(dict(enumerate(lefts)))
        for state in rows.values():
            state.survival, state.offers, state.most = [0.6, 0.36, 0.216], 1.0, 3
        work = Goodput(knowledge, range(9))._work(rows[0])
        ends = [_End.of(state.left, work[3]) for state in rows.values()]
        drawn = [max(steps_to(left, 0.6) for left in lefts) for _ in range(2000)]
        last = _in_order(sorted(ends, reverse=True))[0]
        assert last == pytest.approx(sum(drawn) / len(drawn), rel=0.04)
    assert last == pytest.approx(max(ends).steps, rel=0.04)
