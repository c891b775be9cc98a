"""The controller on imagined machines: what it costs where drafting is useless, and how near it comes to the best."""

import random
from dataclasses import replace
from math import pi, sqrt
from statistics import median

import pytest

from paceline.core.early_stop import BITS
from paceline.core.plan import Fixed
from paceline.core.step import Finish, PhaseSeconds, StepPlan, StepResult
from paceline.core.tree import NoDraft
from paceline.engine.acceptance import Counts, Pool, survival
from paceline.engine.controller import Controller
from paceline.engine.costs import StepCosts, StepWork
from paceline.engine.curve import Curve
from paceline.engine.exploration import FIRST_AGAIN, LESSONS, plain_is_due
from paceline.engine.goodput import Goodput
from paceline.engine.knowledge import MAX_DRAFT_TOKENS, Knowledge
from paceline.engine.row_state import TELLING, RowState
from tests.engine.machine import PLAIN, Machine, reads
from tests.harness import request

# What a node adds to a forward, a drafted token takes, and a missed one, in plain steps.
MACHINES = {
    "cheap": dict(growth=0.05, draft=0.05, missed=0.002),
    "nearly free": dict(growth=0.02, draft=0.02, missed=0.001),
    "expensive": dict(growth=0.25, draft=0.1, missed=0.005),
    "a large draft model": dict(growth=0.1, draft=0.15, missed=0.012),
}


def controller(rows=1, **options):
    return Controller(rows=rows, **options)


def never(row, position):
    return 0.0


def serve(plan, accepts, *, num_tokens=256, requests=6, **options):
    return Machine(plan, **options).serve(accepts, num_tokens=num_tokens, requests=requests)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("rows", [1, 4, 8])
def test_useless_drafts_cost_little(rows, machine):
    """At least 0.97 of plain decoding over requests of 256 tokens, and 0.93 over requests of 32, the first included."""
    options = dict(rows=rows, **MACHINES[machine])
    long = serve(controller(rows), never, **options)
    short = serve(controller(rows), never, num_tokens=32, requests=24, **options)
    assert long.speedup >= 0.97 and short.speedup >= 0.93


@pytest.mark.one_in(4)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("rows", [1, 8])
def test_it_comes_near_the_best_fixed_length(rows, acceptance, machine):
    """On a noisy machine, from nothing, lessons included. A batch may stay plain where no length gains over a fifth."""
    options = dict(rows=rows, noise=0.05, disturbed=50, **MACHINES[machine])
    fixed = [serve(Fixed(depth), lambda *_: acceptance, **options).speedup for depth in range(MAX_DRAFT_TOKENS + 1)]
    auto = serve(controller(rows), lambda *_: acceptance, **options).speedup
    least = 0.86 if rows == 1 or max(fixed) > 1.2 * fixed[0] else 0.81
    assert auto >= least * max(fixed) and auto >= 0.93 * fixed[0]


def test_drafting_is_on_soon_after_a_text_becomes_predictable():
    before = []
    for seed in range(8):
        depths = serve(
            controller(),
            lambda row, position: 0.95 if position >= 200 else 0.02,
            num_tokens=300,
            requests=1,
            seed=seed,
            **MACHINES["nearly free"],
        ).depths[0]
        before.append(sum(depth > 0 for depth in depths[100:200]))
        assert sum(depth > 0 for depth in depths[200:232]) >= 3
        assert sum(depth >= 2 for depth in depths[232:]) > 40
    assert median(before) < 20  # a lucky one may go on for some time


def test_a_probe_that_has_become_dear_is_saved_for():
    """After 1,500 tokens without a draft the drafter must read so much that the usual savings do not pay it."""
    plan = controller()
    accepts = lambda row, position: 0.95 if position >= 1500 else 0.0  # noqa: E731
    machine = serve(plan, accepts, num_tokens=2500, requests=1, growth=0.02, draft=0.02, missed=0.005)
    assert sum(depth >= 2 for depth in machine.depths[0][1500:]) > 300


def test_the_first_drafts_of_every_kind_of_batch_are_lessons():
    """Of drafts that do not pay, but might, for every row: what was measured for one kind says little of another."""
    known = Knowledge()
    serve(controller(knowledge=known), lambda *_: 0.3, num_tokens=200, requests=1, growth=0.01, draft=0.45)
    plan = controller(4, knowledge=known)

    def planned(number, **options):
        plan.admit(range(number), [request([1], max_tokens=64, **options)] * number)
        made = plan()
        plan.release(range(number))
        return made.num_draft_tokens, made.explored

    assert max(planned(1)[0], planned(1)[0]) < LESSONS[0]
    assert [planned(4) for _ in LESSONS] == [(depth, (0, 1, 2, 3)) for depth in LESSONS]
    assert [planned(1, temperature=0.8) for _ in LESSONS] == [(depth, (0,)) for depth in LESSONS]
    assert planned(4)[1] != (0, 1, 2, 3)
    untimed = controller(4, timed=False)
    untimed.admit(range(4), [request([1], max_tokens=64)] * 4)
    assert untimed().explored == ()


@pytest.mark.parametrize("rows", [1, 8])
def test_lessons_end_where_they_leave_no_hope(rows):
    """A draft that takes three plain steps, and of which little is accepted."""
    plan = controller(rows)
    first = serve(plan, lambda *_: 0.1, rows=rows, num_tokens=16, requests=1, growth=0.1, draft=3.0)
    assert 2 <= sum(map(bool, first.depths[0])) <= 4
    later = serve(plan, lambda *_: 0.1, rows=rows, num_tokens=48, requests=4, growth=0.1, draft=3.0)
    assert sum(map(bool, later.depths[0])) <= 2


def test_a_curve_is_fitted_again_only_after_it_was_measured_or_doubted(monkeypatch):
    fitted, fit = [], Curve._fit_line
    monkeypatch.setattr(Curve, "_fit_line", lambda self: fitted.append(1) or fit(self))
    curve = Curve((1.0, 0.1, 0.0))
    for change in (lambda: curve.observe(3, 1.0), lambda: curve.doubt(3), lambda: curve.load([[2, 0, 1.0, 3]])):
        before = len(fitted)
        change()
        for _ in range(3):
            curve.refresh()
        assert len(fitted) == before + 1


def test_drafts_that_were_slow_at_first_are_taken_again():
    """In the first minutes of a process a draft takes seven times as long: it does not pay then, and later it does."""

    class Cold(Machine):
        def _step(self, *given):
            self.draft = [0.6 if self.seconds < 40 * PLAIN else 0.08]
            super()._step(*given)

    served = Cold(controller(4), rows=4, growth=0.05).serve(lambda *_: 0.5, num_tokens=96, requests=12)
    assert sum(map(bool, served.depths[0][64:FIRST_AGAIN])) < 16, "too slow at first"
    assert served.speedup > 1.04, "it would be 1.0 if only probes noticed"


def test_lessons_that_lose_much_are_given_again_later():
    served = serve(controller(), lambda *_: 0.3, num_tokens=1200, requests=1, growth=0.1, draft=0.45)
    again = [token for token, depth in enumerate(served.depths[0]) if depth == LESSONS[2] and token > 64]
    assert again and again[0] > 1.5 * FIRST_AGAIN


@pytest.mark.parametrize("rows", [1, 8])
def test_slow_first_drafts_leave_hope(rows):
    """They meet cold caches: the first of all takes ten plain steps, and drafting pays all the same."""

    class Cold(Machine):
        def _step(self, *given):
            self.draft = [10.0 if self.seconds == 0 else 0.05]
            super()._step(*given)

    served = Cold(controller(rows), rows=rows, growth=0.05).serve(lambda *_: 0.8, num_tokens=64, requests=1)
    assert sum(map(bool, served.depths[0][:16])) >= 8 and sum(map(bool, served.depths[0][16:])) >= 32


def test_drafts_that_there_is_no_room_for_teach_no_cost():
    """The last tokens of an output: what is planned is not drafted, and takes no time."""
    plan = controller(4)
    serve(plan, lambda row, _: 0.5 + 0.1 * row, rows=4, num_tokens=16, requests=20, growth=0.05, draft=0.1)
    costs = [cost / depth for (depth, _), (cost, _) in plan.knowledge.costs.draft.known.items()]
    assert len(costs) > 8 and max(costs) < 1.1 * min(costs)


def learnt(line, measured):
    """A curve that has seen each of ``measured``, (count, beside, cost), three times."""
    curve = Curve(line)
    for _ in range(3):
        for count, beside, cost in measured:
            curve.observe(count, cost, beside)
    curve.refresh()
    return curve


def test_measurements_near_nothing_do_not_spoil_the_others():
    measured = ((1, 3, 0.15), (2, 6, 0.3), (4, 12, 0.6), (2, 0, 0.0), (4, 0, 0.0), (1, 0, 0.15))
    curve = learnt((0.05, 0.1, 0.008), measured)
    assert 0.1 < curve(1, 3) < 0.3 and 0.2 < curve(2, 6) < 0.45 and 0.35 < curve(4, 12) < 0.9 and curve(1) < 0.3
    base, per_count, _ = learnt((0.05, 0.1, 0.008), ((1, 0, 0.15), (2, 0, 0.0), (3, 0, 0.3))).line
    assert base + per_count > 0.03


def test_a_line_without_negative_parts_is_the_best_of_these():
    """Costs that fall with the count: the best one without a slope, not the best of all cut off."""
    measured = ((1, 0, 1.0), (2, 0, 0.7), (3, 0, 0.4))
    base, per_count, _ = learnt((1.0, 0.1, 0.01), measured).line
    assert per_count < 1e-3 and 0.4 < base < 0.75


def test_rows_have_depths_of_their_own():
    machine = serve(
        controller(4), lambda row, _: 0.97 if row == 2 else 0.03, rows=4, requests=1, **MACHINES["nearly free"]
    )
    mean = [sum(depths[40:]) / len(depths[40:]) for depths in machine.depths]
    assert mean[2] > 3 and max(mean[:2] + mean[3:]) < 1


def test_a_drafter_that_pays_is_used_from_the_first_step_of_a_later_request():
    known = Knowledge()
    serve(controller(knowledge=known), lambda *_: 0.9, **MACHINES["cheap"])
    later = serve(controller(knowledge=known), lambda *_: 0.9, num_tokens=16, requests=1, **MACHINES["cheap"])
    assert later.depths[0][0] >= 3


def test_a_useless_drafter_is_not_asked_at_the_beginning_of_a_later_request():
    known = Knowledge()
    serve(controller(knowledge=known), never, **MACHINES["cheap"])
    later = serve(controller(knowledge=known), never, num_tokens=16, requests=1, **MACHINES["cheap"])
    assert later.depths[0][0] == 0 and sum(map(bool, later.depths[0])) <= 2


def test_greedy_requests_and_those_that_sample_teach_pools_of_their_own():
    known = Knowledge()
    serve(controller(knowledge=known), lambda *_: 0.9, **MACHINES["cheap"])
    assert known.greedy.counts.asked > 0 == known.sampled.counts.asked
    before = list(known.greedy.counts.accepted)
    plan = controller(knowledge=known)
    plan.admit([0], [request([1], max_tokens=64, temperature=0.8)])
    assert plan().num_draft_tokens != controller_of_greedy(known)
    for _ in range(8):
        plan.observe(rejected(plan()))
    assert known.sampled.counts.asked > 0 and known.greedy.counts.accepted == before


def controller_of_greedy(known):
    """The first depth of a greedy request."""
    plan = controller(knowledge=known)
    plan.admit([0], [request([1], max_tokens=64)])
    return plan().num_draft_tokens


def rejected(plan):
    """The result of a step of one row, nothing of whose draft was accepted."""
    depth = plan.num_draft_tokens
    return StepResult(
        plan=plan,
        tokens=[[0]],
        num_accepted=[0],
        num_drafted=[depth],
        finish=[Finish.RUNNING],
        bonus=[False],
        confidence=[0],
        no_draft=[NoDraft.DRAFTED if depth else NoDraft.OFF],
        origins=[[0]],
        logprobs=[[]],
        seconds=PhaseSeconds(draft=0.001 * depth, score=0.01, decide=0.001, rest=0.001),
    )


def test_a_token_that_was_not_submitted_counts_by_its_chance():
    """Or chains that end early would seem to be rejected there, and deeper drafts not to pay."""
    known = Knowledge()
    likely, unlikely = 15, 5  # levels
    state = RowState.of(request([1], max_tokens=64), pool=known.greedy, max_depth=4, plain=False)
    ended = replace(rejected(StepPlan(3)), num_drafted=[1], num_accepted=[1], confidence=[unlikely << BITS | likely])
    for _ in range(TELLING):
        state.learn(ended, 0, 3, levels=True, timed=True, sample=True)
    chance = known.greedy.confidence.acceptance[unlikely - 1]
    assert 0.1 < chance < 0.4 and known.greedy.counts.tried[2] == 0
    assert known.greedy.counts.accepted[1] == pytest.approx(chance * known.greedy.counts.tried[1])
    assert state.counts.accepted[0] == state.counts.tried[0]


def test_a_long_request_counts_for_more_than_a_short_one_but_does_not_speak_for_all():
    """All of its drafts count, later ones less and less: outputs become easier, or harder, to draft as they go on."""
    known, drafted = Knowledge(), replace(rejected(StepPlan(1)), num_drafted=[1])

    def learn(num_steps, accepted):
        state = RowState.of(request([1], max_tokens=4096), pool=known.greedy, max_depth=1, plain=False)
        for _ in range(num_steps):
            step = replace(drafted, num_accepted=[accepted])
            state.learn(step, 0, 1, levels=False, timed=True, sample=True)
        known.greedy.refresh()
        return known.greedy.rates[0]

    before = learn(TELLING, 1)
    state = RowState.of(request([1], max_tokens=4096), pool=known.greedy, max_depth=1, plain=False)
    for number in range(64 * TELLING):
        step = replace(drafted, num_accepted=[int(number < TELLING)])
        state.learn(step, 0, 1, levels=False, timed=True, sample=True)
    known.greedy.refresh()
    late = known.greedy.rates[0]
    assert 0.2 < late < before - 0.2
    assert learn(4 * TELLING, 1) > late + 0.2


@pytest.mark.parametrize("rows", [1, 4])
def test_a_prompt_is_read_at_once_only_where_the_request_is_long_enough_to_earn_that(rows):
    known = Knowledge()
    serve(controller(rows, knowledge=known), lambda *_: 0.9, rows=rows, **MACHINES["cheap"])

    def at_once(prompt, max_tokens):
        plan = controller(rows, knowledge=known, postpones=True)
        plan.admit(range(rows), [request([1] * prompt, max_tokens=max_tokens)] * rows)
        return plan.drafts_at_once

    assert at_once(10, 200) and at_once(2000, 200) and at_once(10, 8)
    assert not at_once(20_000, 8) and not at_once(4000, 8)


def test_short_readings_do_not_make_long_ones_seem_dear():
    """Most of what they take is that the drafter is cold: with few tokens that was measured, with many it was not."""
    costs = StepCosts(growth=0.05)
    costs.observe(StepWork(1, 1), PhaseSeconds(score=0.01))
    for number in range(24):
        missed = (4, 8, 16)[number % 3]
        costs.observe(
            StepWork(1, 2, 1, 1), PhaseSeconds(draft=0.01 * (0.15 + 0.5 + 0.01 * missed), score=0.0105), missed=missed
        )
    costs.refresh()
    assert costs.catching_up(8) == pytest.approx(0.58, rel=0.25) and 1.0 < costs.catching_up(150) < 4.0


def test_what_a_draft_model_reads_must_be_won_back_twice():
    known, length = Knowledge(), 64
    serve(controller(knowledge=known), lambda *_: 0.9, **MACHINES["cheap"])
    goodput = Goodput(known, range(MAX_DRAFT_TOKENS + 1))
    state = RowState.of(request([1], max_tokens=length), pool=known.greedy, max_depth=MAX_DRAFT_TOKENS, plain=False)
    speedup = goodput.best({0: state}).speedup
    won = (speedup - 1) * length / speedup * known.costs.plain(1)
    for share, drafts in ((0.45, True), (0.55, False)):
        state.missed = reads(known.costs, share * won)
        assert bool(goodput.best({0: state}).depths) == drafts


def test_what_the_controller_takes_is_part_of_the_cost_of_drafted_steps_alone():
    costs = StepCosts(growth=0.05)
    costs.observe(StepWork(1, 1), PhaseSeconds(score=0.001))
    plain, drafted = costs(StepWork(1, 1)), costs(StepWork(1, 2, 1, 1))
    for _ in range(200):
        costs.observe_planning(0.0005)
    assert costs(StepWork(1, 1)) == plain
    assert (costs(StepWork(1, 2, 1, 1)) - drafted) * costs.level == pytest.approx(0.0005, rel=0.05)


def test_a_larger_batch_that_makes_drafts_dear_turns_them_off():
    known = Knowledge()
    options = MACHINES["expensive"]
    alone = serve(controller(knowledge=known), lambda *_: 0.7, **options)
    many = serve(controller(16, knowledge=known), lambda *_: 0.7, rows=16, **options)
    assert sum(map(bool, alone.depths[0])) > 0.6 * len(alone.depths[0])
    assert sum(map(bool, many.depths[0])) < 0.2 * len(many.depths[0])


def test_steps_that_take_longer_with_the_context_change_no_choice():
    """Plain steps were measured when the context was short; all steps have become slower alike."""
    machine = serve(
        controller(),
        lambda *_: 0.85,
        num_tokens=1500,
        requests=1,
        slowdown=lambda at: 1 + at / 300,
        **MACHINES["cheap"],
    )
    assert sum(depth >= 2 for depth in machine.depths[0][300:]) > 0.95 * 1200


@pytest.mark.parametrize(("ends_early", "period"), [(False, 48), (True, 128)])
def test_a_share_of_the_drafted_steps_explores(ends_early, period):
    """Decisions are made every few steps, which must not make it miss its turn."""
    steps = []

    class Noting(Machine):
        def _step(self, *given):
            steps.append(self.plan())
            super()._step(*given)

    Noting(controller(ends_early=ends_early), **MACHINES["cheap"]).serve(lambda *_: 0.85, num_tokens=3000)
    drafted = [step for step in steps if step.num_draft_tokens][len(LESSONS) :]
    explored = [step for step in drafted if step.explored]
    assert 0.7 * len(drafted) / period <= len(explored) <= 1.2 * len(drafted) / period
    assert all(step.stop is None or not any(step.stop.least) for step in explored)


def test_a_plan_is_made_once_per_result():
    """It depends on earlier results alone: asked again it says the same."""
    plan = controller()
    twice = []

    class Asking(Machine):
        def _step(self, *given):
            twice.append(plan() is plan())
            super()._step(*given)

    Asking(plan, **MACHINES["cheap"]).serve(lambda *_: 0.5, num_tokens=64)
    assert twice and all(twice)


def depths_of(accepts, *, rows, seconds=None):
    """Planned depths of row 0 without a clock, with ``rows`` rows."""
    plan = controller(rows, timed=False)
    return serve(plan, accepts, rows=rows, num_tokens=120, requests=1, slowdown=seconds).depths[0]


def test_without_a_clock_a_row_depends_on_its_own_results_alone():
    """So the same seed gives the same tokens under verifiers whose tokens depend on the draft."""

    def accepts(row, position):
        return 1.0 if row == 0 and position % 7 else 0.0

    alone = depths_of(accepts, rows=1)
    assert depths_of(accepts, rows=5) == alone == depths_of(accepts, rows=1, seconds=lambda at: 1 + at % 5)
    assert max(alone) > 1


def test_nodes_that_are_not_verified_cost_whether_there_is_a_draft_or_not():
    """A drafter that has one only now and then scores them in every step."""
    knowledge = Knowledge(growth=0.004)
    for number in range(200):
        knowledge.greedy.counts.add(num_accepted=0, depth=0 if number % 3 else 3, keep=1.0)
        knowledge.greedy.counts.add(num_accepted=3, depth=3 if number % 3 else 0, keep=1.0)
    knowledge.refresh()
    state = RowState(counts=Counts(MAX_DRAFT_TOKENS), pool=knowledge.greedy, most=3, left=100)
    sizes = [0, *range(15, 15 + MAX_DRAFT_TOKENS)]
    choice = Goodput(knowledge, sizes, num_unverified=14).best({0: state})
    (depth,) = choice.depths.values()
    assert 0.2 < state.offers < 0.8
    of = knowledge.costs.of
    assert choice.cost == pytest.approx(of(1, 1 + 14 + state.offers * depth, depth, depth) / of(1, 1))


def test_a_window_is_paid_for_where_it_pays_alone():
    """14 nodes beside every draft: on one machine as many as a plain step costs, on another next to nothing."""
    window = dict(num_nodes=[0, *range(15, 15 + MAX_DRAFT_TOKENS)], num_unverified=14)
    for growth, least, most in ((0.08, 0.95, 1.0), (0.002, 1.5, 9.9)):
        plan = controller(knowledge=Knowledge(growth=growth), **window)
        machine = serve(plan, lambda *_: 0.6, growth=growth, draft=0.01, unverified=14)
        assert least <= machine.speedup <= most
    assert plan.knowledge.costs.score.measured(15 + 2, 0) + plan.knowledge.costs.score.measured(15 + 3, 0) > 0


def test_no_draft_tokens_at_all_is_refused():
    with pytest.raises(ValueError, match="max_draft_tokens=0: give at least 1"):
        Controller(rows=1, max_draft_tokens=0)


def test_steps_without_a_draft_say_why():
    reasons = set()
    plan = controller()
    machine = Machine(plan, **MACHINES["cheap"])
    observe = plan.observe

    def noting(result):
        if result.plan.num_draft_tokens == 0:
            reasons.add(result.plan.off)
        observe(result)

    plan.observe = noting
    machine.serve(lambda row, position: 0.95 if position < 100 else 0.0, num_tokens=256)
    assert reasons == {NoDraft.SLOWER, NoDraft.MEASURED}


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_speed_says_what_was_gained(noise):
    """Drafted steps are compared with plain ones as both were measured, noise included, not with what is least."""
    plan = controller()
    machine = serve(plan, lambda *_: 0.9, noise=noise, num_tokens=4096, **MACHINES["cheap"])
    gained = machine.speedup * (1 + sqrt(2 / pi) * noise)  # plain steps would have been as noisy
    assert plan.speed.drafted / plan.speed.plain == pytest.approx(gained, rel=0.06)


def test_costs_say_what_lengths_promise():
    plan = controller()
    serve(plan, lambda *_: 0.9, **MACHINES["cheap"])
    costs = plan.costs()
    assert [cost.depth for cost in costs] == list(range(MAX_DRAFT_TOKENS + 1)) and costs[0].break_even == 1
    assert costs[5].break_even == pytest.approx(1.5, rel=0.1) and costs[5].expected == pytest.approx(4.7, rel=0.1)


def test_a_curve_is_a_line_and_what_is_measured_beside_it():
    curve = Curve((1.0, 0.1, 0.05), grouped=True)
    assert curve(3) == pytest.approx(1.3) and curve(3, 2) == pytest.approx(1.4)
    for _ in range(40):
        for count in (1, 2, 8):
            curve.observe(count, 2 + 0.5 * count)
            curve.refresh()
            curve.observe(count, 4 + 0.5 * count, 4)
            curve.refresh()
    assert curve(2) == pytest.approx(3, rel=0.02) and curve(5) == pytest.approx(4.5, rel=0.02)
    assert curve(5, 4) == pytest.approx(6.5, rel=0.02) and curve(5, 2) == pytest.approx(5.5, rel=0.05)
    assert curve.measured(2) == 40 and curve.measured(4) == 0 and curve.measured(2, 4) == 40
    for _ in range(40):
        curve.observe(4, 6.0)  # a count of its own, off the line
    curve.refresh()
    assert curve(4) == pytest.approx(6.0, rel=0.05) and curve(4, 4) == pytest.approx(6.0, rel=0.1)
    assert curve(2) == pytest.approx(3, rel=0.05)


def test_a_curve_knows_what_it_measured_in_a_large_batch():
    """Large counts share entries, and what is asked for has to be found in the same one."""
    curve = Curve((1.0, 0.1, 0.05), grouped=True)
    for _ in range(200):
        curve.observe(32, 20.0, 31)
        curve.observe(48, 20.0, 31)
        curve.observe(64, 30.0, 31)
        curve.refresh()
    assert [curve(count, 31) for count in (32, 48, 64)] == pytest.approx([20, 20, 30], rel=0.05)
    assert curve.measured(32, 31) == 200


def test_a_disturbed_first_measurement_is_soon_forgotten():
    costs = StepCosts(growth=0.05)
    for number in range(12):
        seconds = 0.5 if number == 0 else 0.01
        costs.observe(StepWork(1, 1), PhaseSeconds(score=seconds))
    costs.observe(StepWork(1, 4, 3, 3), PhaseSeconds(draft=0.001, score=5.0))
    for _ in range(4):
        costs.observe(StepWork(1, 4, 3, 3), PhaseSeconds(draft=0.001, score=0.012))
    assert costs(StepWork(1, 4, 3, 3)) / costs(StepWork(1, 1)) == pytest.approx(1.3, rel=0.15)


def test_plain_steps_are_the_rarer_the_faster_drafting_is():
    """Four in a row tell what one takes: they lose next to nothing of what drafting gains."""
    known = dict(times_measured=8)
    for speedup, soonest in ((1.0, 24), (1.1, 51), (1.2, 102), (1.5, 256), (3.0, 256)):
        assert plain_is_due(soonest, speedup=speedup, **known) and not plain_is_due(
            soonest - 1, speedup=speedup, **known
        )
    assert plain_is_due(3, speedup=3.0, times_measured=0) and not plain_is_due(3, speedup=3.0, times_measured=1)


def test_costs_stay_where_they_are_on_a_disturbed_machine():
    """One part of a step at a time is disturbed: what is measured often must not wander from what is not measured."""
    chosen, costs = random.Random(0), StepCosts(growth=0.05)
    parts = dict(draft=0.0002, score=0.001, decide=0.0001, rest=0.0001)

    def step(work, **other):
        taken = {**parts, **other}
        hit = chosen.choice([*taken]) if chosen.random() < 0.3 else None
        return costs.observe(
            work, PhaseSeconds(**{name: 5 * one if name == hit else one for name, one in taken.items()})
        )

    for _ in range(60):
        step(StepWork(1, 1), draft=0.0)
        step(StepWork(1, 4, 3, 3), score=0.0013)
    before = costs(StepWork(1, 4, 3, 3)) / costs(StepWork(1, 1))
    for _ in range(4000):
        step(StepWork(1, 1), draft=0.0)
    after = costs(StepWork(1, 4, 3, 3)) / costs(StepWork(1, 1))
    assert before == pytest.approx(1.42, rel=0.15) and after == pytest.approx(before, rel=0.15)


def test_a_cost_that_was_measured_at_a_bad_time_is_found_out():
    curve = Curve((1.0, 0.05, 0.0))
    for _ in range(100):
        curve.observe(2, 1.1)
        curve.observe(3, 1.15)
    for _ in range(30):
        curve.observe(4, 6.0)
        curve.refresh()
    before = curve(4)
    assert before > 2
    for _ in range(4):
        curve.doubt(4)
    curve.refresh()
    assert curve(4) < 0.85 * before
    for _ in range(16):
        curve.observe(4, 1.2)
    curve.refresh()
    assert curve(4) < 1.5 and curve(2) == pytest.approx(1.1, rel=0.05)


def test_acceptance_is_of_each_depth_and_of_the_request():
    pool, counts = Pool(4), Counts(4)
    for _ in range(200):
        pool.counts.add(num_accepted=2, depth=4, keep=pool.KEEP)
    pool.refresh()
    assert pool.rates[0] > 0.95 and pool.rates[1] > 0.95 and pool.rates[2] < 0.05
    new = survival(counts, pool, weight=2.0)
    for _ in range(20):
        counts.add(num_accepted=0, depth=4, keep=0.94)
    own = survival(counts, pool, weight=2.0)
    assert new[1] > 0.9 and new[2] < 0.1 and own[0] < 0.15
    fresh = Pool(4)
    for number in range(400):
        fresh.counts.add(num_accepted=4 if number % 2 else 0, depth=4, keep=fresh.KEEP)
    fresh.refresh()
    assert fresh.rates[0] == pytest.approx(0.5, abs=0.02) and min(fresh.rates[1:]) > 0.95


WINDOW = 32  # tokens that the drafter reads for a search


@pytest.mark.parametrize("acceptance", [0.0, 0.9])
@pytest.mark.parametrize("search", [1.0, 6.0, 20.0])
def test_a_search_takes_a_fiftieth_of_the_time(search, acceptance):
    """Whether drafting pays or not, and however much dearer it is than expected; the last one may not be paid yet."""
    machine = serve(
        controller(num_search_nodes=WINDOW),
        lambda *_: acceptance,
        num_tokens=512,
        requests=20,
        search=search,
        draft=0.5,
    )
    assert machine.num_searches > 0
    assert (machine.num_searches - 1) * search * PLAIN <= 0.02 * machine.plain_seconds
    assert acceptance == 0.0 or machine.num_searches * search > 0.005 * machine.seconds / PLAIN, "it makes use of it"


def test_no_search_before_its_cost_is_saved():
    """A forward of so many tokens is expected to take more than three plain steps."""
    machine = serve(controller(num_search_nodes=WINDOW), lambda *_: 0.9, num_tokens=128, requests=1, search=6.0)
    assert sum(machine.by_drafter) > 8 and machine.num_searches == 0


def test_a_drafter_that_does_not_search_is_not_let():
    machine = serve(controller(), lambda *_: 0.9, requests=12, search=6.0)
    assert sum(machine.by_drafter) > 64 and machine.num_searches == 0


def test_what_a_search_takes_is_no_part_of_what_drafting_costs():
    """Nor of how fast the machine is; but it is of the speed that is told."""
    known = [Knowledge() for _ in range(2)]
    for one, search in zip(known, (0.0, 20.0), strict=True):
        one.probes.search.open(0.0)
        plan = controller(num_search_nodes=WINDOW, knowledge=one)
        machine = serve(plan, lambda *_: 1.0, num_tokens=3, requests=1, search=search)
        assert machine.by_drafter == [1] and machine.num_searches == (search > 0)
    first, second = (one.costs.draft.known[2, 0] for one in known)
    assert second == pytest.approx(first)
    assert known[1].costs.level == pytest.approx(known[0].costs.level)
    plan = controller(num_search_nodes=WINDOW)
    machine = serve(plan, lambda *_: 0.8, num_tokens=512, requests=20, search=20.0)
    assert machine.num_searches > 1
    assert plan.speed.drafted == pytest.approx(machine.tokens / machine.seconds, rel=0.02)
