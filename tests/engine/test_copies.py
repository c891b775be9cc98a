"""What is expected of copies, which of them are verified, and what is learnt of those that are not."""

import random

import pytest

from paceline.core.host_draft import HostDraft
from paceline.core.step import Finish, PhaseSeconds, StepPlan, StepResult
from paceline.core.tree import NoDraft
from paceline.engine.controller import Controller
from paceline.engine.copies import SWITCH, CopyRates, CopyRow, choose_copies
from paceline.engine.copy_plans import MAX_COPIED_TOKENS, CopyPlan
from paceline.engine.costs import StepCosts
from paceline.engine.knowledge import Knowledge
from paceline.engine.mixed_plan import MixedPlan
from tests.harness import request

PLAIN, GROWTH, DRAFT = 0.01, 0.05, 0.08  # seconds of a step; what a node and a drafted token add, in plain steps
SAID = [7] * 64


def copied(length, match=8, probs=None, origin=0):
    return HostDraft((7,) * length, match=match, probs=probs, origin=origin)


def test_longer_matches_and_surer_tokens_are_believed_more():
    rates = CopyRates()
    by_match = [rates.rates(copied(1, match=match), 1)[0] for match in (1, 2, 4, 8, 32)]
    assert by_match == sorted(by_match) and by_match[0] < 0.5 < by_match[2]
    by_prob = [rates.rates(copied(1, probs=(prob,)), 1)[0] for prob in (0.3, 0.6, 1.0)]
    assert by_prob == sorted(by_prob)
    assert rates.rates(copied(3, probs=(0.6, 0.6, 0.6)), 3)[1:] == rates.rates(copied(3, match=9), 2), "given the first"


def test_tokens_after_the_first_wrong_one_say_nothing():
    rates = CopyRates()
    compared = rates.learn(HostDraft((1, 2, 9, 4), match=8), [1, 2, 3, 4])
    assert [right for _, right in compared] == [True, True, False]
    assert rates.learn(HostDraft((1, 2, 3), match=8), [1]) == [(pytest.approx(compared[0][0], abs=0.1), True)]


def test_rates_follow_what_was_right_by_class():
    rates = CopyRates()
    for _ in range(300):
        rates.learn(copied(1, match=2), [8])
        rates.learn(copied(1, match=16), [7])
    assert rates.rates(copied(1, match=2), 1)[0] < 0.05
    assert rates.rates(copied(1, match=16), 1)[0] > 0.95


def test_a_request_unlike_the_others_is_noticed_soon():
    rates = CopyRates()
    for _ in range(200):
        rates.learn(copied(1), [7])
    row = CopyRow(rates=rates, most=8)
    before = sum(row.survival(copied(8)))
    for _ in range(12):
        row.learn(copied(4), [8], shared=True)
    assert sum(row.survival(copied(8))) < 0.6 * before
    other = CopyRow(rates=rates, most=8)
    assert sum(other.survival(copied(8))) > sum(row.survival(copied(8)))


def test_drafts_are_cut_where_a_token_costs_more_than_it_gives():
    rates = CopyRates()
    rows = {row: CopyRow(rates=rates, most=32) for row in range(3)}
    costs = StepCosts(growth=0.05)
    long = choose_copies({0: [copied(32, match=30)], 1: [copied(32, match=1)], 2: []}, rows, costs, running=3)
    assert len(long.drafts[0].tokens) > 8 and len(long.drafts.get(1, HostDraft(())).tokens) < 3
    assert long.speedup > 1.5
    dear = choose_copies({0: [copied(32, match=30)]}, rows, StepCosts(growth=0.9), running=1)
    assert len(dear.drafts.get(0, HostDraft(())).tokens) < len(long.drafts[0].tokens)
    assert choose_copies({}, rows, costs, running=3).drafts == {}


def test_of_several_drafts_the_one_that_promises_most_is_taken():
    rows, costs = {0: CopyRow(rates=CopyRates(), most=32)}, StepCosts(growth=0.05)
    offers = {0: [copied(2, match=30), copied(20, match=12, origin=1), copied(20, match=1, origin=2)]}
    assert choose_copies(offers, rows, costs, running=1).drafts[0].origin == 1


def test_copies_are_verified_exactly_where_some_number_of_tokens_pays():
    drawn, seen = random.Random(0), set()
    for _ in range(300):
        costs = StepCosts(growth=drawn.choice([0.02, 0.3, 0.9]))
        rows = {row: CopyRow(rates=CopyRates(), most=32) for row in range(4)}
        offers = {row: [copied(drawn.randint(1, 32), match=drawn.randint(1, 24))] for row in rows}
        fixed = drawn.choice([0.0, 0.1, 0.5])
        chances = sorted((one for row in rows for one in rows[row].survival(offers[row][0])), reverse=True)
        speedups = [
            (4 + sum(chances[:count])) / 4 * costs.of(4, 4) / (costs.of(4, 4 + count) + fixed)
            for count in range(1, len(chances) + 1)
        ]
        choice = choose_copies(offers, rows, costs, running=4, fixed=fixed)
        found = choice.speedup if choice.drafts else 1.0
        seen.add(bool(choice.drafts))
        assert found == pytest.approx(max(1.0, *speedups), rel=0.05), "cuts are a few percent apart"
        assert not choice.drafts or max(speedups) + 1e-9 >= found > SWITCH
    assert seen == {True, False}


class Texts:
    """Serves rows under a plan: ``offer(row, position)`` gives a draft's length and how much of it is right."""

    def __init__(self, plan, *, rows=1, accepts=0.0, seed=0, growth=GROWTH, draft=DRAFT):
        self.growth, self.draft = growth, draft
        self.plan, self.rows, self.accepts = plan, rows, accepts
        self.random, self.seconds, self.tokens, self.copied, self.both = random.Random(seed), 0.0, 0, 0, 0

    def serve(self, offer, *, steps, noise=0.0):
        self.plan.admit(range(self.rows), [request([1], max_tokens=10_000)] * self.rows)
        length = [0] * self.rows
        for _ in range(steps):
            offered = {row: offer(row, length[row]) for row in range(self.rows)}
            self.plan.consider({row: [draft] for row, (draft, _) in offered.items() if draft is not None})
            plan = self.plan()
            tokens, accepted, drafted = [], [], []
            for row in range(self.rows):
                _, right = offered[row]
                said = [7] * right + [8] + SAID
                if row in (plan.copies or {}):
                    depth = len(plan.copies[row].tokens)
                    taken = min(depth, right)
                elif plan.copies is not None and not plan.num_copied:
                    depth = taken = 0
                else:
                    depth, taken = plan.depth_of(row), 0
                    while taken < depth and self.random.random() < self.accepts:
                        taken += 1
                tokens.append(said[: taken + 1])
                accepted.append(taken)
                drafted.append(depth)
                length[row] += taken + 1
            self.copied += plan.copies is not None
            self.both += plan.num_copied > 0
            nodes = self.rows + sum(drafted)
            drafting = self.draft * plan.num_draft_tokens if plan.copies is None or plan.num_copied else 0.0
            seconds = PLAIN * (1 + self.growth * (nodes - 1) + drafting) * (1 + noise * self.random.random())
            self.seconds += seconds
            self.tokens += sum(map(len, tokens))
            self.plan.observe(
                StepResult(
                    plan=plan,
                    tokens=tokens,
                    num_accepted=accepted,
                    num_drafted=drafted,
                    finish=[Finish.RUNNING] * self.rows,
                    bonus=[False] * self.rows,
                    confidence=[0] * self.rows,
                    no_draft=[NoDraft.DRAFTED if depth else NoDraft.NO_MATCH for depth in drafted],
                    origins=tokens,
                    logprobs=[[]] * self.rows,
                    seconds=PhaseSeconds(draft=PLAIN * drafting, score=seconds - PLAIN * drafting),
                )
            )
        self.plan.release(range(self.rows))
        return self

    @property
    def speedup(self):
        return self.tokens * PLAIN * (1 + self.growth * (self.rows - 1)) / self.rows / self.seconds


def copies(rows=8, **options):
    return CopyPlan(rows=rows, knowledge=Knowledge(), timed=True, **options)


def mixed(rows=1, *, joins=False):
    knowledge = Knowledge()
    controller = Controller(rows=rows, knowledge=knowledge)
    return MixedPlan(copies=CopyPlan(rows=rows, knowledge=knowledge, timed=True), others=controller, joins=[joins])


@pytest.mark.parametrize("rows", [1, 8])
def test_right_copies_are_verified_whole(rows):
    served = Texts(copies(), rows=rows).serve(lambda *_: (copied(32, match=20), 32), steps=200)
    assert served.tokens / 200 / rows > 20 and served.speedup > (8 if rows == 1 else 1.3)


@pytest.mark.parametrize("rows", [1, 8])
def test_useless_copies_cost_next_to_nothing(rows):
    """Whether they were right is seen without verifying them, so they are not tried again and again."""
    served = Texts(copies(), rows=rows).serve(lambda *_: (copied(16, match=3), 0), steps=400)
    assert served.speedup > 0.97


def test_where_copies_become_right_they_are_verified_at_once():
    plan = copies()
    Texts(plan).serve(lambda *_: (copied(16, match=6), 0), steps=200)
    served = Texts(plan).serve(lambda *_: (copied(16, match=6), 16), steps=60)
    assert served.speedup > 4, "it was seen that they are right, though none was submitted at first"


def test_copies_that_were_not_verified_teach_too():
    plan = copies(1)
    plan.admit([0], [request([1])])
    rate = plan.knowledge.greedy.copies.rates
    before = rate(copied(1, match=6), 1)[0]
    for _ in range(60):
        plan.consider({0: [copied(8, match=6)]})
        plan.learn(
            StepResult(
                plan=StepPlan(0),
                tokens=[[8]],
                num_accepted=[0],
                num_drafted=[0],
                finish=[Finish.RUNNING],
                bonus=[False],
                confidence=[0],
                no_draft=[NoDraft.SLOWER],
                origins=[[0]],
                logprobs=[[]],
            )
        )
    assert rate(copied(1, match=6), 1)[0] < 0.2 < before


def test_nothing_on_offer_is_plain_decoding():
    plan = copies()
    plan.admit([0], [request([1])])
    plan.consider({})
    step = plan()
    assert step.num_draft_tokens == 0 and step.off is NoDraft.NO_MATCH


def test_a_request_that_wants_no_draft_has_none():
    plan = copies()
    plan.admit([0, 1], [request([1], num_draft_tokens=0), request([1], num_draft_tokens=2)])
    plan.consider({0: [copied(9, match=30)], 1: [copied(9, match=30)]})
    step = plan()
    assert step.depths[:2] == (0, 2) and list(step.copies) == [1]


def test_recorded_steps_have_few_shapes():
    plan = copies(sizes=True)
    plan.admit([0], [request([1])])
    shapes = set()
    for length in range(1, 40):
        plan.consider({0: [copied(length, match=40)]})
        shapes.add(plan().num_draft_tokens)
    assert shapes <= {0, 1, 2, 4, 8, 16, MAX_COPIED_TOKENS}


def test_a_plan_without_a_clock_looks_at_each_row_alone():
    def depths(offers, rows):
        plan = CopyPlan(rows=3, knowledge=Knowledge(), timed=False)
        plan.admit(rows, [request([1])] * len(rows))
        for _ in range(3):
            plan.consider(offers)
            step = plan()
        return {row: len(draft.tokens) for row, draft in (step.copies or {}).items()}

    offers = {0: [copied(9, match=30)], 1: [copied(9, match=3)], 2: [copied(2, match=2)]}
    together = depths(offers, [0, 1, 2])
    for row, several in offers.items():
        assert depths({row: several}, [row]) == {one: n for one, n in together.items() if one == row}


@pytest.mark.parametrize("rows", [1, 4])
def test_mixed_drafters_are_each_used_where_they_pay(rows):
    """Copies stand in half of the text; a draft model is right four times in five everywhere."""

    def offer(row, position):
        return (copied(24, match=16), 24) if position // 200 % 2 else (None, 0)

    served = Texts(mixed(rows), rows=rows, accepts=0.8).serve(offer, steps=600)
    only_copies = Texts(copies(), rows=rows).serve(offer, steps=600)
    only_model = Texts(Controller(rows=rows), rows=rows, accepts=0.8).serve(lambda *_: (None, 0), steps=600)
    assert served.speedup > max(only_copies.speedup, only_model.speedup)
    assert served.copied


def test_mixed_drafters_lose_nothing_where_copies_are_wrong():
    served = Texts(mixed(), accepts=0.85).serve(lambda *_: (copied(16, match=4), 0), steps=500)
    alone = Texts(Controller(rows=1), accepts=0.85).serve(lambda *_: (None, 0), steps=500)
    assert served.speedup > 0.95 * alone.speedup


def test_some_rows_copy_while_others_are_drafted_for():
    """Rows copy most of their text, and not at the same time; the draft model costs little."""
    rows, cheap = 4, dict(growth=0.01, draft=0.01)

    def offer(row, position):
        return (copied(24, match=16), 24) if (position + 75 * row) % 300 < 240 else (None, 0)

    both = Texts(mixed(rows, joins=True), rows=rows, accepts=0.8, **cheap).serve(offer, steps=400)
    either = Texts(mixed(rows), rows=rows, accepts=0.8, **cheap).serve(offer, steps=400)
    assert both.both > 100 and either.both == 0
    assert both.speedup > 1.1 * either.speedup


def test_a_step_for_both_has_each_row_at_its_own_depth():
    plan = mixed(3, joins=True)
    Texts(plan, rows=3, accepts=0.9).serve(lambda *_: (None, 0), steps=100)
    plan.admit(range(3), [request([1], max_tokens=1000)] * 3)
    found = None
    for _ in range(50):
        plan.consider({1: [copied(24, match=30)]})
        step = plan()
        found = step if step.num_copied else found
    assert found.drafter == 1 and list(found.copies) == [1]
    assert found.depths[1] == 0 and found.depths[0] == found.depths[2] == found.num_draft_tokens > 0
    assert found.num_copied == len(found.copies[1].tokens) == found.most_gained(1) - 1 > found.num_draft_tokens


def one_step(plan, draft, *, right, copying=0.1, looking=0.1):
    """Offers ``draft`` to the one row of ``plan``; the drafting takes so many plain steps. The tokens verified."""
    if plan.considers:
        plan.consider({0: [draft]})
    step = plan()
    depth = len(step.copies[0].tokens) if step.copies else 0
    taken = depth if right else 0
    plan.observe(
        StepResult(
            plan=step,
            tokens=[([7] * 9 if right else [8])[: taken + 1]],
            num_accepted=[taken],
            num_drafted=[depth],
            finish=[Finish.RUNNING],
            bonus=[False],
            confidence=[0],
            no_draft=[NoDraft.DRAFTED if depth else NoDraft.SLOWER],
            origins=[[0]],
            logprobs=[[]],
            seconds=PhaseSeconds(draft=(copying if depth else looking) * PLAIN, score=0.9 * PLAIN),
        )
    )
    return depth


def test_where_looking_for_copies_is_dear_and_none_is_right_it_pauses():
    """And begins again with a copy that is right, or with a new request."""
    plan, looked = copies(1), []

    def steps(count, right):
        for _ in range(count):
            looked.append(plan.considers)
            one_step(plan, copied(8, match=6), right=right)

    plan.admit([0], [request([1], max_tokens=10_000)])
    steps(200, right=False)
    assert all(looked[:4]) and sum(looked[100:]) < 20
    looked.clear()
    steps(200, right=True)
    assert sum(looked[100:]) == 100
    plan.release([0])
    plan.admit([0], [request([1], max_tokens=10_000)])
    assert plan.considers


@pytest.mark.parametrize(("copying", "least", "most"), [(0.1, 0.9, 1.0), (3.0, 0.0, 0.2)])
def test_what_a_step_with_copies_takes_beside_the_forward_counts(copying, least, most):
    """Two right tokens for three more steps' time do not pay. One slow step is forgotten, though."""
    plan = copies(1)
    plan.admit([0], [request([1], max_tokens=10_000)])
    for _ in range(4):
        one_step(plan, copied(1, match=1), right=False, looking=0.01)
    copied_in = [one_step(plan, copied(2, match=30), right=True, copying=copying, looking=0.01) for _ in range(400)]
    assert least <= sum(map(bool, copied_in[40:])) / 360 <= most
    assert sum(map(bool, copied_in[40:])), "it is tried again"
