"""Plans that choose each row's depth from its own past do not change the distribution, however they choose."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from paceline.core.tree import Draw
from paceline.drafters.model import ModelDrafter
from paceline.verifiers import VERIFIERS
from tests.distributions.cases import TABLES
from tests.distributions.exact import distance, output_distribution, target_distribution
from tests.distributions.ledger import note
from tests.distributions.test_chains import BOUND, verifiers
from tests.harness import PerRow, decoder_for, request
from tests.tables import TableLM

K = 2
OPTIONS = dict(temperature=1.0)
PLANS = {
    "by the newest token": lambda row, tokens: tokens[-1],
    "none after token 0": lambda row, tokens: 0 if tokens[-1] == 0 else K,
    "by how much was gained": lambda row, tokens: len(tokens) % (K + 1),
    "by a repetition": lambda row, tokens: 1 if tokens[-1] == tokens[-2] else 2,
}


def draft(table, draw):
    return lambda: ModelDrafter(lm=TableLM(TABLES[table][1]), draws=frozenset({draw}))


LEAST = {  # levels of these drafts are 6 to 10 of 15
    "one for all": lambda tokens: 0.3,
    "by the newest token": lambda tokens: (0.2, 0.45, 0.6)[tokens[-1]],
}
ADVERSARIES = {
    **{name: partial(PerRow, depth) for name, depth in PLANS.items()},
    **{f"ends early, {name}": partial(PerRow, lambda row, tokens: K, least=least) for name, least in LEAST.items()},
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("table", ["full support", "zeros after some contexts"])
@pytest.mark.parametrize("plan", ADVERSARIES)
@pytest.mark.parametrize("verifier", [name for name, _ in verifiers()])
def test_the_distribution_is_the_targets_under_an_adversarial_plan(verifier, plan, table):
    kind, target = VERIFIERS.find(verifier), TABLES[table][0]
    draw = kind.wants[0] if Draw.IID not in kind.wants else Draw.IID
    found = output_distribution(
        target=target, drafter=draft(table, draw), verifier=kind, k=K, steps=2, plan=ADVERSARIES[plan], **OPTIONS
    )
    error = distance(found.distribution, target_distribution(target, 2 * (K + 1), OPTIONS))
    note(verifier=verifier, tree="planned chain", draw=draw.name.lower(), rows=found.num_rows, error=error)
    assert abs(found.weight - 1) < 1e-9
    assert error <= BOUND


@pytest.mark.parametrize("least", LEAST)
def test_some_chains_end_early_and_others_do_not(least):
    """In what is enumerated above."""
    plan = PerRow(lambda row, tokens: K, K, least=LEAST[least])
    prompts = [[2, first, second] for first in range(3) for second in range(3)]
    target, drafter = TableLM(TABLES["full support"][0]), draft("full support", Draw.IID)()
    decoder = decoder_for(drafter, "rejection", target=target, rows=len(prompts), max_length=48, plan=plan)
    plan.batch = decoder.batch
    decoder.admit([request(prompt, max_tokens=40, temperature=1.0) for prompt in prompts], range(len(prompts)))
    drafted = set()
    for _ in range(4):
        decoder.step()
        drafted |= set(decoder.results().num_drafted)
    assert {0, K} & drafted and len(drafted) >= 2


def test_a_plan_that_looks_at_the_tokens_it_submits_is_seen():
    """Non-anticipation is what makes the others exact: dropping a token for what it is changes the distribution."""
    target = TABLES["full support"][0]

    def looking():
        drafter = draft("full support", Draw.IID)()
        finish = drafter.finish

        def drop(batch, grown):
            tree = finish(batch, grown)
            kept = (tree.tokens != 0)[:, 1:].cumprod(-1).bool()
            return replace(tree, valid=tree.valid & torch.nn.functional.pad(kept, (1, 0), value=True))

        drafter.finish = drop
        return drafter

    found = output_distribution(
        target=target, drafter=looking, verifier=VERIFIERS.find("rejection"), k=K, steps=1, **OPTIONS
    )
    assert distance(found.distribution, target_distribution(target, K + 1, OPTIONS)) > 0.01
