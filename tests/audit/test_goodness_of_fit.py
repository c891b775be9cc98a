"""The tests reject tokens that were not sampled from their distributions, and pass those that were."""

import pytest
import torch

from paceline.audit.acceptance import compare_acceptance, coupled_acceptance, rejection_acceptance
from paceline.audit.goodness_of_fit import GoodnessOfFitTest

VOCAB, NUM, BIAS = 40, 20_000, 0.02


def random_probs(generator, count, vocab=VOCAB):
    return (2 * torch.randn(count, vocab, generator=generator, dtype=torch.float64)).softmax(-1)


def toward(change):
    """``p`` moved by BIAS in total variation toward ``change(p)``."""

    def biased(p):
        other = change(p)
        distance = (p - other).abs().sum(-1, keepdim=True) / 2
        return p + (other - p) * (BIAS / distance.clamp(min=BIAS))

    return biased


def swapped(p):
    """Mass moved from the second to the third most probable token."""
    order = p.argsort(-1, descending=True)
    moved = torch.minimum(p.gather(-1, order[:, 1:2]), torch.tensor(BIAS))
    return p.scatter_add(-1, order[:, 1:2], -moved).scatter_add(-1, order[:, 2:3], moved)


BIASES = {
    "flatter": toward(lambda p: torch.full_like(p, 1 / p.shape[-1])),
    "sharper": toward(lambda p: torch.nn.functional.one_hot(p.argmax(-1), p.shape[-1]).double()),
    "swapped": swapped,
}


def run(seed, bias=None):
    generator = torch.Generator().manual_seed(seed)
    p = random_probs(generator, NUM)
    sampled = torch.multinomial(p if bias is None else bias(p), 1, generator=generator)[:, 0]
    test = GoodnessOfFitTest(seed=seed)
    for start in range(0, NUM, 5000):
        test.add(p[start : start + 5000], sampled[start : start + 5000])
    return test.result()


@pytest.mark.slow
@pytest.mark.parametrize("bias", BIASES)
def test_bias_of_two_percent_is_rejected_in_95_of_100_runs(bias):
    assert sum(not run(seed, BIASES[bias]).passed for seed in range(100)) >= 95


@pytest.mark.slow
def test_unbiased_samples_are_rejected_in_at_most_two_of_100_runs():
    assert sum(not run(seed).passed for seed in range(100)) <= 2


@pytest.mark.parametrize("bias", BIASES)
def test_bias_is_rejected(bias):
    assert all(not run(seed, BIASES[bias]).passed for seed in range(3))


def test_unbiased_samples_pass_and_entropy_is_exact():
    found = run(7)
    assert found.passed and found.num_tokens == NUM
    assert abs(found.nll - found.entropy) < 2 * found.half_width
    exact = random_probs(torch.Generator().manual_seed(7), NUM)
    assert found.entropy == pytest.approx(float(-(exact * exact.log()).sum(-1).mean()))


@pytest.mark.slow
def test_p_values_of_unbiased_samples_are_uniform():
    found = [run(seed) for seed in range(100, 140)]
    for name in ("nll_p_value", "ks_p_value", "rank_p_value"):
        values = [getattr(one, name) for one in found]
        assert 0.3 < sum(values) / len(values) < 0.7 and min(values) < 0.2 and max(values) > 0.8


def test_one_hot_distributions_allow_no_deviation():
    certain = torch.eye(3, dtype=torch.float64)
    equal, other = GoodnessOfFitTest(), GoodnessOfFitTest()
    equal.add(certain, torch.tensor([0, 1, 2]))
    other.add(certain, torch.tensor([0, 1, 1]))
    assert equal.result().nll_p_value == 1.0
    assert not other.result().passed


def test_empty_samples_are_refused():
    with pytest.raises(ValueError, match="no tokens to test"):
        GoodnessOfFitTest().result()
    with pytest.raises(ValueError, match="no drafted tokens to test"):
        compare_acceptance(torch.empty(0), torch.empty(0))


def test_acceptance_rate_matches_its_closed_forms():
    generator = torch.Generator().manual_seed(3)
    p, q = random_probs(generator, 400, 12), random_probs(generator, 400, 12)
    pairs = torch.maximum(p[:, None] / p[..., None], q[:, None] / q[..., None]).sum(-1)
    assert torch.allclose(coupled_acceptance(p, q), (1 / pairs).sum(-1), atol=1e-12)
    noise = -torch.rand(400, 12, generator=generator, dtype=torch.float64).log()
    agreed = (noise / p).argmin(-1) == (noise / q).argmin(-1)
    assert compare_acceptance(agreed, coupled_acceptance(p, q)).p_value > 0.001
    assert bool((coupled_acceptance(p, q) <= rejection_acceptance(p, q) + 1e-12).all())
    assert compare_acceptance(agreed, coupled_acceptance(p, q) + 0.2).p_value < 0.001


def test_coupled_acceptance_ignores_zero_probabilities():
    p = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    q = torch.tensor([[0.5, 0.0, 0.5], [0.0, 0.5, 0.5]], dtype=torch.float64)
    assert coupled_acceptance(p, q).tolist() == pytest.approx([1 / 3, 0.0])
    assert coupled_acceptance(p, p).tolist() == pytest.approx([1.0, 1.0])
