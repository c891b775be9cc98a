"""Samples of one source pass the two-sample test even where the distributions are wrong; others are rejected."""

import pytest
import torch

from paceline.audit.goodness_of_fit import GoodnessOfFitTest
from paceline.audit.two_sample import MIN_SEQUENCES, SequenceSample, two_sample_test

VOCAB, LENGTH = 24, 20


def samples(seed, count=80, change=lambda p: p):
    """Sequences in which some tokens are not those that were sampled, as in re-encoded text."""
    generator = torch.Generator().manual_seed(seed)
    sample, test = SequenceSample(seed=seed), GoodnessOfFitTest(seed=seed)
    for _ in range(count):
        probs = (2 * torch.randn(LENGTH, VOCAB, generator=generator, dtype=torch.float64)).softmax(-1)
        sampled = torch.multinomial(change(probs), 1, generator=generator)[:, 0]
        replaced = torch.rand(LENGTH, generator=generator) < 0.05
        tokens = torch.where(replaced, torch.randint(VOCAB, (LENGTH,), generator=generator), sampled)
        sample.add(probs, tokens)
        test.add(probs, tokens)
    return sample, test


def test_equal_deviations_pass_where_the_one_sample_test_rejects():
    (one, test), (other, _) = samples(1, 400), samples(2, 400)
    assert not test.result().passed
    found = two_sample_test(one, other)
    assert found.passed and found.num_tokens == 400 * LENGTH
    assert found.nll == pytest.approx(test.result().nll)
    assert abs(found.nll - found.entropy) < 2 * found.half_width


@pytest.mark.slow
def test_p_values_of_one_source_are_uniform():
    found = [two_sample_test(samples(seed)[0], samples(1000 + seed)[0]) for seed in range(30)]
    for name in ("nll_p_value", "ks_p_value", "rank_p_value"):
        values = [getattr(one, name) for one in found]
        assert 0.35 < sum(values) / len(values) < 0.65 and min(values) < 0.2 and max(values) > 0.8, name
    assert sum(not one.passed for one in found) <= 2


@pytest.mark.parametrize("scale", [0.8, 1.25])
def test_another_temperature_is_rejected(scale):
    changed, _ = samples(3, 200, lambda p: (p.log() * scale).softmax(-1))
    assert not two_sample_test(changed, samples(4, 200)[0]).passed


def test_too_few_sequences_are_refused():
    (few, _), (many, _) = samples(5, MIN_SEQUENCES - 1), samples(6, MIN_SEQUENCES)
    for one, other in ((few, many), (many, few), (SequenceSample(), many)):
        with pytest.raises(ValueError, match=f"give at least {MIN_SEQUENCES} of each"):
            two_sample_test(one, other)
