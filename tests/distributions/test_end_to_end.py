"""Real transformers, real caches, ragged rows: the joint distribution of several tokens is the target's under every
verifier.

Each case, of a draft model or of one of the target's heads, decodes sequences of eight groups that differ in prompt,
warping and where they end, in one batch whose rows allow drafts of different lengths and are given new sequences as
they end. The counts of each group are tested against the exact distribution (tests/distributions/end_to_end), and so
are all groups together and the share of sequences that the draft favours.

Error rate: were all verifiers right, a false alarm anywhere in this file would have a probability of at most ``LEVEL``,
with seeds taken at random (Bonferroni over all tests of all cases, the slow ones included). Power, tested below: a
joint distribution that is off by 0.1 in total variation toward the draft's in every group is seen in nine of ten cases
of this size, and a verifier that accepts as if the target's probabilities were a quarter larger is seen. `make
distributions-long` sees about a third of that."""

import pytest
import torch

from paceline.core.tree import Draw
from paceline.verifiers import VERIFIERS
from paceline.verifiers.lossy_lenient import LossyLenient
from tests.distributions.end_to_end import (
    GROUPS,
    SHAPES,
    Case,
    Sampled,
    cases,
    cases_of_heads,
    chances,
    exact,
    joint_distribution,
    sample,
)
from tests.distributions.gtest import g_test, holm, tail
from tests.distributions.models import draft_logits, heads

pytestmark = pytest.mark.one_in(15)

LEVEL = 1e-6
SEQUENCES, ROWS = 1600, 800
CASES, LOSSY = cases(lossless=True), cases(lossless=False)
OF_HEADS = cases_of_heads()
BOUND = LEVEL / (len(CASES + OF_HEADS) * (len(GROUPS) + 2))
FEW = ("chains", "tree", "paths", "confident")

# (whether the verifier knows the distribution of a draw, draw) -> floors of acceptance at depths 1 and 2 of chains, and
# of trees.
BLIND = {
    Draw.SHARED: ((0.65, 0.35), (0.77, 0.42)),
    Draw.FIXED: ((0.52, 0.20), (0.66, 0.26)),
    Draw.IID: ((0.46, 0.17), (0.57, 0.25)),
    Draw.NO_REPLACEMENT: ((0.46, 0.17), (0.66, 0.25)),
}
KNOWING = {
    Draw.FIXED: BLIND[Draw.FIXED],
    Draw.IID: ((0.70, 0.43), (0.72, 0.45)),
    Draw.NO_REPLACEMENT: ((0.70, 0.43), (0.76, 0.47)),
}
# Head -> floors of acceptance at depths 1 and 2 of chains, and of trees: where drafts share the target's noise or are
# weighed by their distributions, and elsewhere.
FLOORS = {
    "early exit": (((0.72, 0.49), (0.80, 0.54)), ((0.36, 0.10), (0.55, 0.18))),
    "recycling exit": (((0.71, 0.43), (0.76, 0.50)), ((0.47, 0.14), (0.58, 0.23))),
    "prophet": (((0.39, 0.18), (0.41, 0.19)), ((0.26, 0.08), (0.33, 0.09))),
    "linear prophet": (((0.36, 0.15), (0.46, 0.18)), ((0.12, 0.01), (0.28, 0.03))),
}


def is_soon(case):
    """Whether a case of a head is soon: each verifier meets one in turn by the draw that it likes best, coupled all."""
    kind, known = VERIFIERS.find(case.verifier), list(heads())
    turn = known[VERIFIERS.builtin.index(case.verifier) % len(known)]
    if case.draw != kind.wants[0] or case.shape != ("leaf first" if kind.branches else "chains"):
        return False
    return case.source == turn or case.verifier == "coupled"


def params(found):
    return [pytest.param(case, id=str(case), marks=[] if case.shape in FEW else [pytest.mark.slow]) for case in found]


@pytest.mark.parametrize("case", params(CASES))
def test_the_joint_distribution_of_real_outputs_is_the_targets(case):
    found = sample(case, num_sequences=SEQUENCES, rows=ROWS, seed=CASES.index(case))
    assert found.num_sequences == SEQUENCES
    assert min(chances(found).values()) >= BOUND, chances(found)
    chain, tree = (KNOWING if case.knows_distributions else BLIND)[case.draw]
    floors = chain if SHAPES[case.shape][0] is None else tree
    assert all(rate > floor for rate, floor in zip(found.acceptance, floors, strict=False)), found.acceptance


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=str(case), marks=[] if is_soon(case) else [pytest.mark.slow]) for case in OF_HEADS],
)
def test_the_joint_distribution_of_outputs_that_heads_drafted_is_the_targets(case):
    found = sample(case, num_sequences=SEQUENCES, rows=ROWS, seed=len(CASES) + OF_HEADS.index(case))
    assert found.num_sequences == SEQUENCES
    values = chances(found, case.source)
    assert min(values.values()) >= BOUND, values
    near, blind = FLOORS[case.source]
    follows = case.draw == Draw.SHARED or (case.knows_distributions and case.draw != Draw.FIXED)
    chain, tree = near if follows else blind
    floors = chain if case.shape == "chains" else tree
    assert all(rate > floor for rate, floor in zip(found.acceptance, floors, strict=False)), found.acceptance


@pytest.mark.parametrize("case", params(LOSSY))
def test_a_verifier_that_changes_the_distribution_is_seen(case):
    found = sample(case, num_sequences=SEQUENCES, rows=ROWS, seed=LOSSY.index(case))
    assert min(chances(found).values()) < BOUND


CHAIN = Case(verifier="lossy_lenient", draw=Draw.IID, shape="chain of 3")


def test_a_verifier_that_is_lenient_by_a_quarter_is_seen():
    found = sample(CHAIN, num_sequences=SEQUENCES, rows=ROWS, seed=1, verifier=lambda: LossyLenient(lenience=0.8))
    assert min(chances(found).values()) < BOUND
    found = sample(CHAIN, num_sequences=SEQUENCES, rows=ROWS, seed=1, verifier=lambda: LossyLenient(lenience=1.0))
    assert min(chances(found).values()) >= BOUND


def imagined(probs, generator, num_sequences=SEQUENCES):
    """Counts of sequences that come from ``probs``, one for each group."""
    total, counts = sum(group.share for group in GROUPS), []
    for group, distribution in zip(GROUPS, probs, strict=True):
        sequences = torch.multinomial(
            distribution, num_sequences * group.share // total, replacement=True, generator=generator
        )
        counts.append(torch.bincount(sequences, minlength=len(distribution)).double())
    return Sampled(counts=counts, drafted=[], accepted=[], steps=0, emitted=0)


def test_a_small_error_of_the_distribution_is_seen():
    """A tenth of total variation toward the draft's distribution, among sequences that are possible, in nine of ten
    cases.
    """
    generator, probs = torch.Generator().manual_seed(1), []
    for group in GROUPS:
        distribution = exact(group)
        draft = joint_distribution(group, draft_logits("model")) * (distribution > 0)
        pull = draft / draft.sum() - distribution if group.name != "greedy" else torch.zeros_like(distribution)
        distance = float(pull.abs().sum() / 2)
        probs.append(distribution + pull * min(1.0, 0.1 / max(distance, 1e-9)))
    seen = [min(chances(imagined(probs, generator)).values()) < BOUND for _ in range(100)]
    assert sum(seen) >= 90


def test_p_values_of_exact_outputs_are_as_small_as_they_should_be():
    generator = torch.Generator().manual_seed(2)
    probs = [exact(group) for group in GROUPS]
    found = [chances(imagined(probs, generator)) for _ in range(600)]
    for name in (*(group.name for group in GROUPS), "together", "toward the draft"):
        values = torch.tensor([one[name] for one in found])
        assert name == "greedy" or 0.3 < float(values.median()) < 0.7, name
        assert (values < 0.05).sum() <= 52 and (values < 0.001).sum() <= 6, name  # 30 +- 5 and 0.6


def test_the_tail_of_the_chi_square_distribution():
    assert tail(6.0, 2) == pytest.approx(2.718281828459045**-3)
    assert tail(3.841458820694124, 1) == pytest.approx(0.05)
    assert tail(200.0, 2) == pytest.approx(2.718281828459045**-100)
    assert (tail(0.0, 0), tail(float("inf"), 1)) == (1.0, 0.0)


def test_cells_of_low_expectation_are_one():
    distribution = torch.tensor([0.5, 0.48, 0.005, 0.005, 0.005, 0.005], dtype=torch.float64)
    counts = torch.tensor([260.0, 228.0, 3.0, 3.0, 3.0, 3.0], dtype=torch.float64)
    observed, wanted = torch.tensor([[260.0, 228.0, 12.0], [250.0, 240.0, 10.0]], dtype=torch.float64)
    statistic, freedom = g_test(counts, distribution)
    assert statistic == pytest.approx(float(2 * (observed * (observed / wanted).log()).sum()), rel=1e-9)
    assert freedom == 2
    assert g_test(counts.flip(0), distribution.flip(0)) == (pytest.approx(statistic), 2)
    assert g_test(torch.tensor([9.0, 1.0]), torch.tensor([1.0, 0.0]))[0] == float("inf")
    assert g_test(torch.tensor([9.0, 1.0]), torch.tensor([0.9, 0.1])) == (0.0, 0), "everything is one cell"


def test_holm_steps_down_to_the_first_that_holds():
    assert holm([0.2, 0.0001, 0.012, 0.01], 0.04) == [False, True, True, True]
    assert holm([0.03, 0.03], 0.04) == [False, False]
