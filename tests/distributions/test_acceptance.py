"""Expected accepted tokens against closed forms: a verifier may be right and still accept too little."""

import itertools
import math

import pytest
import torch

from paceline.core.tree import Draw
from paceline.drafters.model import ModelDrafter
from paceline.verifiers import VERIFIERS
from tests.distributions.cases import TABLES, VOCAB, WARPS
from tests.distributions.exact import PROMPT, output_distribution, warped
from tests.distributions.test_chains import verifiers
from tests.distributions.trees import PATHS, SHAPES, TableTrees
from tests.tables import TableLM

every_table = pytest.mark.parametrize("table", TABLES)


def paths(p, q, k):
    """Every draft of 1 to k tokens after PROMPT: its probability, and the ratios p / q and distributions along it."""
    for count in range(1, k + 1):
        for draft in itertools.product(range(VOCAB), repeat=count):
            context, own, theirs = list(PROMPT), [], []
            for token in draft:
                own.append(float(p[context[-2], context[-1], token]))
                theirs.append(float(q[context[-2], context[-1], token]))
                context.append(token)
            yield own, theirs


def token_by_token(p, q, k):
    """Sum over drafts of the product of min(p, q)."""
    return sum(math.prod(map(min, own, theirs)) for own, theirs in paths(p, q, k))


def by_block(p, q, k):
    """Sum over drafts of q times the running min(1, ratio) (2403.10444)."""
    total = 0.0
    for own, theirs in paths(p, q, k):
        weight, kept = 1.0, 1.0
        for a, b in zip(own, theirs, strict=True):
            weight *= b
            kept = min(1.0, kept * a / b) if b > 0 else 0.0
        total += weight * kept
    return total


def chain(table, verifier, k, warp):
    target, draft = TABLES[table]
    found = output_distribution(
        target=target,
        drafter=lambda: ModelDrafter(lm=TableLM(draft), draws=frozenset({Draw.IID})),
        verifier=VERIFIERS.find(verifier),
        k=k,
        **WARPS[warp],
    )
    return found.accepted, warped(target, WARPS[warp]), warped(draft, WARPS[warp])


@pytest.mark.one_in(8)
@every_table
@pytest.mark.parametrize("warp", ["plain", "top-k"])
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize(
    "verifier", [name for name, kind in verifiers() if Draw.IID in kind.wants and name != "spectr"]
)
def test_a_chain_is_accepted_as_far_as_the_verifier_allows(verifier, k, warp, table):
    accepted, p, q = chain(table, verifier, k, warp)
    single, block = token_by_token(p, q, k), by_block(p, q, k)
    wanted = block if verifier in ("block", "traversal") else single
    assert accepted == pytest.approx(wanted, abs=1e-12)
    assert block >= single - 1e-12


def same(*row):
    distribution = torch.tensor(row, dtype=torch.float64).log()
    return distribution.expand(len(row), len(row), len(row)).clone()


TOY = {"rejection": 10 / 9, "block": 11 / 9}  # expected tokens accepted of two


@pytest.mark.parametrize("verifier", [name for name in TOY if name in VERIFIERS.builtin])
def test_the_toy_of_block_verification(verifier):
    found = output_distribution(
        target=same(1 / 3, 2 / 3, 0.0),
        drafter=lambda: ModelDrafter(lm=TableLM(same(2 / 3, 1 / 3, 0.0)), draws=frozenset({Draw.IID})),
        verifier=VERIFIERS.find(verifier),
        k=2,
        temperature=1.0,
    )
    assert found.accepted == pytest.approx(TOY[verifier], abs=1e-12)


def optimum(p, q, count):
    """The most that any verifier accepts of ``count`` i.i.d. draws: the least of 1 + p(S) - q(S) ** count over sets
    S.
    """
    sets = [torch.tensor(one, dtype=torch.bool) for one in itertools.product([False, True], repeat=VOCAB)]
    return min(float(1 + p[one].sum() - q[one].sum() ** count) for one in sets)


def k_seq(p, q, count):
    """1 - (1 - beta) ** count at the least valid rho (2310.15141), found by bisection."""

    def beta(rho):
        return float(torch.minimum(q, p / rho).sum())

    low, high = 1.0, float(count)
    for _ in range(100):
        rho = (low + high) / 2
        valid = 1 - (1 - beta(rho)) ** count <= rho * beta(rho) + 1e-15
        low, high = (low, rho) if valid else (rho, high)
    return 1 - (1 - beta(high)) ** count


@every_table
@pytest.mark.parametrize("shape", ["two", "three"])
@pytest.mark.parametrize("verifier", [name for name, kind in verifiers() if kind.branches and Draw.IID in kind.wants])
def test_siblings_are_accepted_within_the_bounds(verifier, shape, table):
    assert shape in PATHS
    target, draft = TABLES[table]
    p, q = warped(target, {})[PROMPT], warped(draft, {})[PROMPT]
    found = output_distribution(
        target=target,
        drafter=lambda: TableTrees(draft, SHAPES[shape], Draw.IID),
        verifier=VERIFIERS.find(verifier),
        k=1,
        temperature=1.0,
    )
    count, one = len(SHAPES[shape]), float(torch.minimum(p, q).sum())
    slack = 1e-4 if verifier == "spectr" else 1e-12  # its rho is found to a few digits, on the valid side
    assert one - slack <= found.accepted <= optimum(p, q, count) + 1e-12
    if verifier == "spectr":
        best = k_seq(p, q, count)
        assert best - slack <= found.accepted <= best + 1e-9
