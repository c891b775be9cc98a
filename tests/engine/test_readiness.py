"""Requests that a draft head reads nothing of, on imagined machines: where drafting does not pay, and nowhere else."""

import pytest

from paceline.core.step import PhaseSeconds
from paceline.engine.controller import Controller
from paceline.engine.exploration import FIRST_AGAIN, LESSONS, REPEATED, Exploration
from paceline.engine.goodput import Goodput
from paceline.engine.knowledge import Knowledge
from paceline.engine.readiness import (
    ALLOWED,
    ALLOWED_HOPE,
    ALLOWED_TRIAL,
    FIRST_WAIT,
    FORGIVEN,
    LONGEST_WAIT,
    LOOKING,
    READING,
    TRIAL,
    Readiness,
)
from paceline.engine.row_state import RowState
from tests.engine.machine import Machine, reads
from tests.harness import request

COSTS = dict(growth=0.1, draft=0.15)


def serve(accepts, *, rows=1, requests=40, num_tokens=48, knowledge=None, **options):
    plan = Controller(rows=rows, knowledge=knowledge)
    return Machine(plan, rows=rows, **{**COSTS, **options}).serve(
        lambda *_: accepts, num_tokens=num_tokens, requests=requests
    )


@pytest.mark.parametrize("ready", [0.05, 0.15])
@pytest.mark.parametrize("rows", [1, 4])
def test_useless_heads_cost_little_although_they_read_every_step(rows, ready):
    """At least 0.97 of plain decoding over short requests; kept ready throughout it would be 1 / (1 + ready)."""
    served = serve(0.05, rows=rows, ready=ready)
    assert served.speedup >= 0.98
    assert served.kept[0] and 1 <= sum(served.kept) <= 8


@pytest.mark.parametrize("rows", [1, 4])
def test_requests_are_ready_where_drafting_pays(rows):
    served = serve(0.8, rows=rows, ready=0.05, noise=0.05)
    assert served.kept.count(False) <= rows // 4 and served.speedup > 1.1


def test_drafting_must_earn_what_being_ready_costs():
    """Steps of ready requests take 0.17 more, so drafts of a token, which give 1.4, take 1.42: not worth it."""
    drafting = serve(0.4, ready=0.0, requests=100)
    served = serve(0.4, ready=0.17, requests=100)
    assert 1.05 < drafting.speedup
    assert sum(served.kept) <= 60 and served.speedup >= 0.98


def test_drafting_that_pays_little_begins_once_being_ready_is_known_to_cost_less():
    """Until then it is assumed to cost so much that one request is plain, which measures it."""
    served = serve(0.4, ready=0.02, requests=60)
    assert served.speedup > 1.03 and 1 <= served.kept.count(False) <= 6


def test_drafting_begins_soon_after_requests_become_predictable():
    known = Knowledge()
    before = serve(0.02, requests=60, ready=0.08, knowledge=known)
    assert not any(before.kept[-5:])
    after = serve(0.9, requests=200, ready=0.08, knowledge=known)
    first = after.kept.index(True)
    assert first * 48 <= LONGEST_WAIT and all(after.kept[first + 2 :])


def test_waits_double():
    readiness = Readiness()
    for wait in (FIRST_WAIT, 2 * FIRST_WAIT, 4 * FIRST_WAIT):
        readiness.observe_plain(wait - 1, 0.9)
        assert not readiness.keeps(0.0, hopeful=False, reading=0.0)
        readiness.observe_plain(1, 0.9)
        assert readiness.keeps(0.0, hopeful=False, reading=0.0)
    assert readiness.keeps(1.2, hopeful=False, reading=40.0), "what pays does not wait"
    readiness.observe_plain(FIRST_WAIT, None)
    assert readiness.keeps(0.0, hopeful=False, reading=0.0), "and waits are short again after it"


def test_waits_grow_with_what_the_last_look_took():
    """So that looks take but a share of the time; gains are not saved up for losses."""
    readiness = Readiness()
    readiness.observe_plain(1, 0.9)
    readiness.observe_ready(1000.0, 500.0)
    for lost in (20.0, 30.0):
        readiness.observe_ready(10.0, 0.9 * (10 + lost))
        wait = lost / LOOKING
        assert wait > 2 * FIRST_WAIT
        readiness.observe_plain(int(wait) - 2, 0.9)
        assert not readiness.keeps(0.0, hopeful=False, reading=0.0)
        readiness.observe_plain(3, 0.9)
        assert readiness.keeps(0.0, hopeful=False, reading=0.0)


@pytest.mark.parametrize(("speedup", "allowed"), [(0.0, ALLOWED_HOPE), (1.2, ALLOWED)])
def test_requests_are_ready_until_they_have_lost_what_they_may(speedup, allowed):
    """More where drafting promises to pay than where that is hoped for; time forgives it."""

    def keeps():
        return readiness.keeps(speedup, hopeful=True, reading=0.0)

    readiness = Readiness()
    readiness.observe_plain(1, 0.9)
    assert keeps()
    for _ in range(10):
        readiness.observe_ready(1.0, 0.9 * (1 + (allowed - 2) / 10))
    assert keeps() and not readiness.keeps(0.0, hopeful=True, reading=4.0), "what would be read counts"
    readiness.observe_ready(1.0, 0.9 * 4)
    assert not keeps()
    readiness.observe_plain(int(2 / FORGIVEN), 0.9)
    assert keeps() and not readiness.keeps(0.0, hopeful=False, reading=0.0)


def test_many_rows_may_lose_less_in_hope_for_one_batch_tells_more_of_the_next():
    several = Readiness(16)
    several.observe_plain(1, 1.0)
    several.observe_ready(1.0, ALLOWED_HOPE / 4)
    assert several.keeps(0.0, hopeful=True, reading=0.0)
    several.observe_ready(1.0, 3.0)
    assert not several.keeps(0.0, hopeful=True, reading=0.0)


def test_several_rows_may_lose_more_where_drafting_is_expected_to_pay_nearly():
    """Being ready included; a single row, whose text may differ from all others, is drafted for where that pays."""

    def kept(rows, speedup, lost):
        readiness = Readiness(rows)
        readiness.observe_plain(1, 0.95)
        readiness.observe_ready(0.0, 0.95 * lost)
        return readiness.keeps(speedup, hopeful=True, reading=0.0), readiness.tries

    assert kept(8, TRIAL / 0.95 + 0.01, ALLOWED_TRIAL - 1) == (True, True)
    assert kept(8, TRIAL / 0.95 - 0.01, ALLOWED_TRIAL - 1) == (False, True)
    assert kept(8, TRIAL / 0.95 + 0.01, ALLOWED_TRIAL + 1) == (False, False)
    assert kept(1, TRIAL / 0.95 + 0.01, ALLOWED_TRIAL - 1) == (False, False)


def test_drafting_that_is_expected_to_pay_nearly_is_tried_and_found_to_pay():
    """The first 24 tokens of every output are hard to draft, the others are easy; nothing else tells that."""
    served = Machine(Controller(rows=8), rows=8, growth=0.055, draft=0.02, ready=0.02, lasts=True).serve(
        lambda _, position: 0.3 if position < 24 else 0.75, num_tokens=96, requests=24
    )
    assert served.speedup > 1.07 and sum(served.kept[-12:]) == 12


def test_what_is_tried_need_not_win_back_what_is_read():
    """It may lose as much in all as a trial may."""
    known, left = Knowledge(growth=0.02), 64
    goodput = Goodput(known, range(9))
    request_of = {"pool": known.greedy, "max_depth": 8, "plain": False}
    rows = {row: RowState.of(request([1], max_tokens=left), **request_of) for row in range(4)}
    speedup, plain = goodput.best(rows).speedup, known.costs.plain(4)
    won, may_lose = (1 - 1 / speedup) * left * plain, (1 - TRIAL) * left * plain
    for share, drafts in ((0.9, True), (1.1, False)):
        for state in rows.values():
            state.missed = reads(known.costs, won + share * may_lose) // 4
        assert bool(goodput.best(rows).depths) == drafts
    known.readiness_of(rows).observe_ready(0.0, 2 * ALLOWED_TRIAL)
    for state in rows.values():
        state.missed = reads(known.costs, 0.9 * won) // 4
    assert not goodput.best(rows).depths


@pytest.mark.parametrize("rows", [1, 8])
def test_several_rows_are_given_up_where_they_are_not_drafted_for(rows):
    """One row is not: its text may change."""
    known = Knowledge()
    first = serve(0.02, rows=rows, requests=1, num_tokens=96, ready=0.05, knowledge=known)
    assert first.kept == [True] and first.given_up == ({*range(8)} if rows == 8 else set())
    assert any(first.depths[0][-64:]) == (rows == 1) and first.speedup > 0.85
    before = serve(0.8, rows=rows, requests=1, num_tokens=96, ready=0.05)
    assert before.kept == [True] and not before.given_up
    assert serve(0.8, rows=rows, requests=200, ready=0.05, knowledge=known).kept[-1], "for these requests alone"


@pytest.mark.parametrize("rows", [1, 8])
def test_a_draft_model_is_not_asked_for_batches_that_begin_plain(rows):
    """It reads their prompts with the first draft, which probes would pay for in every batch. One alone may probe."""
    known = Knowledge()

    def asked(accepts, requests):
        machine = Machine(Controller(rows=rows, knowledge=known, postpones=True), rows=rows, missed=0.01, **COSTS)
        return [any(depths) for depths in machine.serve(lambda *_: accepts, num_tokens=48, requests=requests).depths]

    asked(0.02, 8)
    assert any(asked(0.02, 4)) == (rows == 1) and all(asked(0.9, 200))


def test_drafting_promises_to_pay_if_it_is_faster_than_plain_requests():
    """Which are faster than plain steps of ready ones."""
    readiness = Readiness()
    readiness.observe_plain(1, 0.9)
    assert readiness.pays(1.15) and not readiness.pays(1.13)


def test_what_may_pay_is_drafted_to_find_out():
    """What was seen of the first drafts does not promise that, but leaves it possible."""
    known = Knowledge()
    for _ in LESSONS:
        known.exploration.take_lesson((1, False))
        known.greedy.counts.add(num_accepted=0, depth=1, keep=1.0)
    plan, one = Controller(rows=1, knowledge=known), request([1], max_tokens=48)
    assert plan.drafts_for([0], [one])
    plan.admit([0], [one])
    assert plan().num_draft_tokens == LESSONS[0] > 1, "a probe would be of a single token"


def test_what_ready_requests_won_long_ago_does_not_pay_for_what_they_lose_now():
    readiness = Readiness()
    readiness.observe_plain(1, 1.0)
    for _ in range(100):
        readiness.observe_ready(3.0, 1.0)
    assert readiness.lost == -ALLOWED_HOPE
    readiness.observe_ready(10.0, 10.0 + 2 * ALLOWED_HOPE + 1)
    assert not readiness.keeps(0.0, hopeful=True, reading=0.0)


@pytest.mark.parametrize("waves", [[8], [2, 3, 3]])
def test_reading_prompts_is_a_loss(waves):
    """Of all requests that begin together, whether their prompts are read at once or in turn."""
    known, left = Knowledge(), sum(waves)
    known.exploration.skip_lessons()
    known.costs.observe_plain(8, PhaseSeconds(score=0.01))
    plan, readiness = Controller(rows=8, knowledge=known), known.readiness.setdefault((4, False), Readiness(8))
    readiness.observe_plain(1, 1.0)
    for count in waves:
        left -= count
        begin = range(left, left + count), [request([1], max_tokens=48)] * count
        assert plan.drafts_for(*begin, reread=15 * count, waiting=left)
        plan.admit(*begin)
    assert readiness.lost == pytest.approx(READING * 15 * 8)


def test_requests_that_begin_together_are_all_ready_or_none():
    """The first of them are weighed with the others; after these, what is read already would change that."""
    known = Knowledge()
    known.exploration.skip_lessons()
    plan, one = Controller(rows=8, knowledge=known), request([1], max_tokens=48)
    readiness = known.readiness.setdefault((4, False), Readiness(8))
    decided = [plan.drafts_for([0, 1], [one] * 2, waiting=6)]
    plan.admit([0, 1], [one] * 2)
    while known.exploration.lesson((4, False)):
        known.exploration.take_lesson((4, False))
    readiness.observe_ready(0.0, 2 * ALLOWED)
    decided.append(plan.drafts_for([2, 3, 4], [one] * 3, waiting=3))
    plan.admit([2, 3, 4], [one] * 3)
    decided.append(plan.drafts_for([5, 6, 7], [one] * 3))
    plan.admit([5, 6, 7], [one] * 3)
    plan.release(range(8))
    assert decided == [True, True, True] and not plan.drafts_for(range(8), [one] * 8)


def test_lessons_are_given_once_to_all_that_begin_together():
    lessons = Exploration()
    lessons.skip_lessons()
    for _ in range(4):
        lessons.ensure("kind", 2)
    given = 0
    while lessons.lesson("kind"):
        lessons.take_lesson("kind")
        given += 1
    assert given == 2


def test_lessons_are_given_again_after_twice_as_many_plain_steps_each_time():
    lessons = Exploration()

    def given():
        lessons.repeat("kind")
        count = 0
        while lessons.lesson("kind"):
            lessons.take_lesson("kind")
            count += 1
        return count

    assert lessons.is_new("kind") and given() == len(LESSONS)
    for wait in (FIRST_AGAIN, 2 * FIRST_AGAIN, 4 * FIRST_AGAIN):
        lessons.note_plain("another kind", wait)
        lessons.note_plain("kind", wait - 1)
        assert given() == 0
        lessons.note_plain("kind", 1)
        assert given() == len(LESSONS) and not lessons.is_new("kind"), "no request is kept ready for them"


def test_lessons_are_given_again_once_what_they_lost_is_but_a_share_of_the_time():
    lessons = Exploration()
    for _ in LESSONS:
        lessons.take_lesson("kind")
        lessons.note_explored("kind", 2.0)
    wait = int(2 * len(LESSONS) / REPEATED)
    assert wait > FIRST_AGAIN
    lessons.note_plain("kind", wait - 1)
    lessons.repeat("kind")
    assert not lessons.lesson("kind")
    lessons.note_plain("kind", 2)
    lessons.repeat("kind")
    assert lessons.lesson("kind")


@pytest.mark.parametrize(("num_tokens", "ready"), [(48, False), (480, True)])
def test_drafting_must_earn_what_reading_the_prompt_takes(num_tokens, ready):
    """It takes 12 plain steps here, of which drafting wins back 10 in an output of 48 tokens."""
    served = serve(0.6, num_tokens=num_tokens, requests=4800 // num_tokens, ready=0.01, reading=12.0)
    assert served.speedup >= (1.2 if ready else 0.975)
    assert sum(served.kept) >= len(served.kept) - 1 if ready else sum(served.kept) <= len(served.kept) // 2


def test_what_the_target_reads_again_counts_as_what_the_head_reads():
    def reads_again(reread):
        known = Knowledge()
        known.exploration.skip_lessons()
        plan = Controller(rows=1, knowledge=known)
        return not plan.drafts_for([0], [request([1], max_tokens=48)], reread=reread)

    assert reads_again(1000) and not reads_again(0)


def test_hard_texts_at_first_do_not_hide_those_for_which_drafting_pays():
    """A third of the texts, of which few tokens are accepted, comes first; so drafting seems worthless."""

    def accepts(known, chance):
        return Machine(Controller(rows=1, knowledge=known), ready=0.04, growth=0.15, draft=0.15).serve(
            lambda *_: chance, num_tokens=96, requests=1
        )

    known = Knowledge()
    served = [accepts(known, chance) for chance in (0.1, 0.3, 0.1, *(0.9,) * 6)]
    assert all(one.kept[0] for one in served[4:])
    assert sum(one.plain_seconds for one in served) > 1.2 * sum(one.seconds for one in served)


def test_the_first_rows_of_a_batch_are_judged_with_those_that_wait():
    """So many rows learn that drafting does not pay, and that it might for fewer, which teach nothing in passing."""
    known = Knowledge()
    assert not any(serve(0.4, rows=8, requests=12, draft=0.05, ready=0.1, knowledge=known).kept[4:])

    def ready(number, waiting):
        plan, requests = Controller(rows=8, knowledge=known), [request([1], max_tokens=48)] * number
        return plan.drafts_for(range(number), requests, waiting=waiting)

    assert ready(3, 0) and not ready(3, 5) and not ready(8, 0)


@pytest.mark.parametrize("slower", [0.8, 1.25])
def test_what_being_ready_costs_is_known_on_a_machine_that_changes_its_speed(slower):
    """It was fast while requests were ready, and is slow while they are plain, or the other way round."""
    known = Knowledge()
    serve(0.05, requests=2, ready=0.1, knowledge=known)
    later = serve(0.05, requests=12, ready=0.1, knowledge=known, slowdown=lambda _: slower)
    assert not any(later.kept[2:])
    (share,) = [one._share for one in known.readiness.values() if one._share is not None]
    assert share == pytest.approx(1 / 1.1, abs=0.025)


def test_a_request_that_allows_no_draft_is_plain():
    plan = Controller(rows=1)
    assert not plan.drafts_for([0], [request([1], num_draft_tokens=0)])
    assert plan.drafts_for([0], [request([1])])


def test_without_a_clock_every_request_is_ready():
    plan = Controller(rows=1, timed=False)
    served = Machine(plan, ready=0.1, **COSTS).serve(lambda *_: 0.0, num_tokens=48, requests=30)
    assert all(served.kept)
