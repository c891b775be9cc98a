"""Copies are weighed and learnt from as token by token, to the last bit, whatever came before."""

import random

import pytest

from paceline.core.host_draft import HostDraft
from paceline.core.step import PhaseSeconds
from paceline.engine.copies import CopyRates, CopyRow, choose_copies
from paceline.engine.costs import MOST_NODES, StepCosts, StepWork
from tests.engine.plain_copies import PlainRates, PlainRow, choose_plainly


def drawn_draft(drawn):
    """Of any length; its counts may be missing, those of a chain, or in no order."""
    length, kind, probs = drawn.randint(0, 40), drawn.choice(["none", "chain", "any"]), None
    if kind == "chain":
        probs, prob = [], 1.0
        for _ in range(length):
            prob *= drawn.choice([1.0, 1.0, 1.0, 0.97, 0.9, 0.6, 0.3])
            probs.append(prob)
    elif kind == "any":
        probs = [drawn.choice([1.0, 0.95, 0.9, 0.7, 0.4]) for _ in range(length)]
    tokens = [drawn.choice([7, 7, 7, 9]) for _ in range(length)]
    return HostDraft(tokens, None, drawn.randint(0, 80), probs, drawn.randint(0, 2))


@pytest.mark.parametrize("seed", range(12))
def test_a_history_is_weighed_and_learnt_from_as_token_by_token(seed):
    drawn = random.Random(seed)
    rates, plain_rates, most = CopyRates(), PlainRates(), drawn.choice([0, 1, 5, 32])
    rows = {row: CopyRow(rates=rates, most=most) for row in range(4)}
    plain = {row: PlainRow(rates=plain_rates, most=most) for row in range(4)}
    costs, right, shared = StepCosts(growth=drawn.choice([0.02, 0.1, 0.3])), drawn.random(), seed % 3 > 0
    chosen = 0
    for _ in range(60):
        offers = {row: [drawn_draft(drawn) for _ in range(drawn.randint(0, 3))] for row in range(5)}  # one row ended
        fixed = drawn.choice([0.0, 0.1])
        choice = choose_copies(offers, rows, costs, running=4, fixed=fixed)
        assert choice == choose_plainly(offers, plain, costs, running=4, fixed=fixed)
        chosen += bool(choice.drafts)
        for row, state in rows.items():
            for draft in offers[row]:
                assert state.survival(draft) == plain[row].survival(draft)
                assert state.first_chance(draft) == next(iter(plain[row].chances(draft)), 0.0)
                said = [7 if drawn.random() < right else 8 for _ in range(drawn.randint(1, 9))]
                state.learn(draft, said, shared=shared)
                plain[row].learn(draft, said, shared=shared)
    assert chosen or most == 0 or right < 0.5


@pytest.mark.parametrize("seed", range(4))
def test_verifying_costs_what_a_step_without_drafting_does(seed):
    drawn, costs = random.Random(seed), StepCosts(growth=0.05)
    for _ in range(80):
        rows = drawn.randint(1, 8)
        nodes = rows + drawn.choice([0, drawn.randint(1, 90)])
        taken = PhaseSeconds(draft=1e-4, score=0.01 * (1 + 0.03 * nodes) * drawn.uniform(0.9, 1.4), rest=1e-4)
        costs.observe(StepWork(rows, nodes), taken)
        counts = [0, 1, MOST_NODES * rows, *(drawn.randint(0, 2 * MOST_NODES * rows) for _ in range(5))]
        assert [costs.verifying(rows, rows + count) for count in counts] == [
            costs.of(rows, rows + count) for count in counts
        ]
