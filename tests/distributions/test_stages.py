"""Drafts of several stages that are sampled: by tables of three models, the output has the target's distribution, and
what is drafted that of the draft model.

Every outcome of every random choice is walked, those of the inner verification among them, over one step and over two.
V = 3.
"""

import pytest
import torch

from paceline.core.plan import Fixed
from paceline.core.tree import Draw
from paceline.decode import Decoder
from paceline.drafters.cascade import CascadeDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.staged import StagedDrafter
from paceline.verifiers import VERIFIERS
from tests.distributions.cases import TABLES, WARPS
from tests.distributions.enumerator import Enumerator, Frontier, expand
from tests.distributions.exact import (
    PROMPT,
    distance,
    distributions_after,
    extend,
    output_distribution,
    target_distribution,
)
from tests.distributions.ledger import note
from tests.distributions.test_chains import BOUND, Guess, verifiers
from tests.harness import request
from tests.tables import TableLM, index_of, random_table

pytestmark = pytest.mark.one_in(15)

SMALLEST = random_table(21)


def sampled(table):
    return ModelDrafter(lm=TableLM(table), draws=frozenset({Draw.IID}))


def staged(draft, inner=SMALLEST, **options):
    return StagedDrafter(draft=sampled(draft), inner=sampled(inner), **options)


# Name -> what it makes of the draft model's table.
STAGES = {
    "staged": staged,
    "short": lambda draft: staged(draft, num_inner_tokens=1),
    "bounded": lambda draft: staged(draft, max_forwards=1),
    "guess": lambda draft: StagedDrafter(draft=sampled(draft), inner=Guess()),
    "three": lambda draft: StagedDrafter(
        draft=sampled(draft), inner=staged(SMALLEST, random_table(22), num_inner_tokens=1), num_inner_tokens=1
    ),
    "cascade inside": lambda draft: StagedDrafter(
        draft=sampled(draft), inner=CascadeDrafter(first=sampled(SMALLEST), rest=Guess(), num_first=1)
    ),
}
CASCADES = {
    "cascade": lambda draft: CascadeDrafter(first=sampled(draft), rest=sampled(SMALLEST), num_first=1),
    "guess after it": lambda draft: CascadeDrafter(first=sampled(draft), rest=Guess(), num_first=1),
    "it after a guess": lambda draft: CascadeDrafter(first=Guess(), rest=sampled(draft), num_first=1),
    "staged first": lambda draft: CascadeDrafter(
        first=staged(draft, max_forwards=1), rest=sampled(SMALLEST), num_first=2
    ),
}


def makers():
    """Name -> as STAGES, of all."""
    return {**STAGES, **CASCADES}


def takes_samples():
    return [name for name, kind in verifiers() if Draw.IID in kind.wants]


FULL, ZEROS = "full support", "zeros after some contexts"
# What every run walks: what is made, draft tokens, steps, table, warp.
SOON = (
    ("short", 2, 1, FULL, "plain"),
    ("short", 2, 1, ZEROS, "top-k"),
    ("bounded", 3, 1, FULL, "plain"),
    ("guess", 3, 1, FULL, "plain"),
    ("cascade", 2, 1, FULL, "plain"),
    ("guess after it", 2, 1, FULL, "plain"),
    ("it after a guess", 2, 1, FULL, "plain"),
)
TWICE = ("guess", 2, 2, FULL, "plain")  # the second step meets keys near those of the first


def cases():
    for verifier in takes_samples():
        for name in makers():
            if "guess" in name and name in CASCADES and Draw.FIXED not in VERIFIERS.find(verifier).wants:
                continue
            for table in TABLES:
                for warp in WARPS:
                    for k, steps in ((1, 2), (2, 1), (2, 2), (3, 1)):
                        case = (name, k, steps, table, warp)
                        soon = case in SOON or (verifier == "rejection" and case == TWICE)
                        label = f"{verifier}-{name}-{table}-{warp}-{k}x{steps}".replace(" ", "_")
                        yield pytest.param(verifier, *case, marks=[] if soon else [pytest.mark.slow], id=label)


@pytest.mark.parametrize(("verifier", "name", "k", "steps", "table", "warp"), list(cases()))
def test_the_distribution_is_the_targets(verifier, name, k, steps, table, warp):
    target, draft = TABLES[table]
    found = output_distribution(
        target=target,
        drafter=lambda: makers()[name](draft),
        verifier=VERIFIERS.find(verifier),
        k=k,
        steps=steps,
        **WARPS[warp],
    )
    error = distance(found.distribution, target_distribution(target, steps * (k + 1), WARPS[warp]))
    note(verifier=verifier, tree=name, draw="iid", rows=found.num_rows, error=error)
    assert abs(found.weight - 1) < 1e-9
    assert error <= BOUND


def drafts(drafter, k, options):
    """The draft of every outcome of the random choices: tree, and the probability of each row."""
    scripts, weights = [], torch.ones(1, dtype=torch.float64)
    while True:
        asked = request(list(PROMPT), max_tokens=2 * k + 2, **options)
        decoder = Decoder(
            target=TableLM(TABLES[FULL][0]),
            drafter=drafter(),
            verifier=VERIFIERS.find("rejection")(),
            plan=Fixed(k),
            rows=len(weights),
            max_length=len(PROMPT) + 2 * k + 2,
            noise=Enumerator(scripts),
        )
        decoder.admit([asked] * len(weights), range(len(weights)))
        plan = decoder.plan()
        decoder.begin_step(plan)
        try:
            return decoder.draft(plan), weights
        except Frontier as frontier:
            rows, weights, outcomes = expand(weights, frontier)
            scripts = [*(before[rows] for before in scripts), outcomes]


def draft_cases():
    for name in STAGES:
        for warp in WARPS:
            for k in (1, 2, 3):
                soon = warp in ("plain", "top-k") and k == (3 if name in ("bounded", "guess") else 2)
                yield pytest.param(name, warp, k, marks=[] if soon else [pytest.mark.slow])


@pytest.mark.parametrize(("name", "warp", "k"), list(draft_cases()))
def test_drafts_have_the_distribution_of_the_draft_model_which_the_verifier_reads(name, warp, k):
    """Chains that end early go on by the draft model alone: an end that depends on tokens to come would show."""
    draft, options = TABLES[FULL][1], WARPS[warp]
    tree, weights = drafts(lambda: STAGES[name](draft), k, options)
    num = tree.valid[:, 1:].sum(-1)
    mass = torch.zeros(1, dtype=torch.float64)
    for count in range(k + 1):
        rows = (num == count).nonzero()[:, 0]
        mass = mass if count == 0 else extend(mass, distributions_after(draft, count - 1, options))
        mass = mass.index_add(0, index_of(tree.tokens[rows, 1 : 1 + count], 3), weights[rows])
        known = distributions_after(draft, count, options) if count < k else None
        deeper = (num > count).nonzero()[:, 0]
        if known is not None and len(deeper):
            found = tree.probs[deeper, tree.source[deeper, count + 1]]
            wanted = known[index_of(tree.tokens[deeper, 1 : 1 + count], 3)]
            assert float((found - wanted).abs().max()) < 1e-12
    assert distance(mass, target_distribution(draft, k, options)) <= BOUND
    assert name != "bounded" or num.unique().tolist() == [1, 2, 3][:k]


@pytest.mark.parametrize("name", ["short", "guess", "three"])
@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_as_much_is_accepted_as_of_the_draft_model_alone(verifier, name):
    target, draft = TABLES[FULL]
    options = dict(target=target, verifier=VERIFIERS.find(verifier), k=2, temperature=1.0)
    found = output_distribution(drafter=lambda: STAGES[name](draft), **options)
    alone = output_distribution(drafter=lambda: sampled(draft), **options)
    assert found.accepted == pytest.approx(alone.accepted, abs=1e-12)
