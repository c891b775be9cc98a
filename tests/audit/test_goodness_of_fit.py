"""The tests see what is not drawn from its law, and leave honest draws alone."""

import pytest
import torch

from paceline.audit.goodness_of_fit import Tokens, chance_of_coupling, chance_of_rejection, judge_rate

VOCAB, NUM, BIAS = 40, 20_000, 0.02


def laws(generator, count, vocab=VOCAB):
    return (2 * torch.randn(count, vocab, generator=generator, dtype=torch.float64)).softmax(-1)


def toward(change):
    """``p`` moved by BIAS in total variation toward ``change(p)``."""

    def biased(p):
        other = change(p)
        far = (p - other).abs().sum(-1, keepdim=True) / 2
        return p + (other - p) * (BIAS / far.clamp(min=BIAS))

    return biased


def swapped(p):
    """Mass from the second to the third likeliest token."""
    order = p.argsort(-1, descending=True)
    moved = torch.minimum(p.gather(-1, order[:, 1:2]), torch.tensor(BIAS))
    return p.scatter_add(-1, order[:, 1:2], -moved).scatter_add(-1, order[:, 2:3], moved)


STUBS = {
    "flatter": toward(lambda p: torch.full_like(p, 1 / p.shape[-1])),
    "sharper": toward(lambda p: torch.nn.functional.one_hot(p.argmax(-1), p.shape[-1]).double()),
    "swapped": swapped,
}


def verdict(seed, stub=None):
    generator = torch.Generator().manual_seed(seed)
    p = laws(generator, NUM)
    drawn = torch.multinomial(p if stub is None else stub(p), 1, generator=generator)[:, 0]
    tokens = Tokens(seed=seed)
    for at in range(0, NUM, 5000):
        tokens.add(p[at : at + 5000], drawn[at : at + 5000])
    return tokens.verdict()


@pytest.mark.slow
@pytest.mark.parametrize("stub", STUBS)
def test_a_bias_of_two_percent_is_flagged_in_95_of_100_runs(stub):
    assert sum(not verdict(seed, STUBS[stub]).honest for seed in range(100)) >= 95


@pytest.mark.slow
def test_honest_draws_are_flagged_in_at_most_two_of_100_runs():
    assert sum(not verdict(seed).honest for seed in range(100)) <= 2


@pytest.mark.parametrize("stub", STUBS)
def test_a_bias_is_flagged(stub):
    assert all(not verdict(seed, STUBS[stub]).honest for seed in range(3))


def test_honest_draws_are_not_flagged_and_the_figures_are_what_they_say():
    found = verdict(7)
    assert found.honest and found.num_tokens == NUM
    assert abs(found.surprise - found.entropy) < 2 * found.half_width
    exact = laws(torch.Generator().manual_seed(7), NUM)
    assert found.entropy == pytest.approx(float(-(exact * exact.log()).sum(-1).mean()))


def test_p_values_of_honest_draws_are_uniform():
    found = [verdict(seed) for seed in range(100, 140)]
    for name in ("surprise_p", "place_p", "rank_p"):
        values = [getattr(one, name) for one in found]
        assert 0.3 < sum(values) / len(values) < 0.7 and min(values) < 0.2 and max(values) > 0.8


def test_certain_laws_leave_no_room():
    certain = torch.eye(3, dtype=torch.float64)
    honest, other = Tokens(), Tokens()
    honest.add(certain, torch.tensor([0, 1, 2]))
    other.add(certain, torch.tensor([0, 1, 1]))
    assert honest.verdict().surprise_p == 1.0
    assert not other.verdict().honest


def test_acceptance_is_judged_against_its_closed_forms():
    generator = torch.Generator().manual_seed(3)
    p, q = laws(generator, 400, 12), laws(generator, 400, 12)
    pairs = torch.maximum(p[:, None] / p[..., None], q[:, None] / q[..., None]).sum(-1)
    assert torch.allclose(chance_of_coupling(p, q), (1 / pairs).sum(-1), atol=1e-12)
    noise = -torch.rand(400, 12, generator=generator, dtype=torch.float64).log()
    agreed = (noise / p).argmin(-1) == (noise / q).argmin(-1)
    assert judge_rate(agreed, chance_of_coupling(p, q)).p > 0.001
    assert bool((chance_of_coupling(p, q) <= chance_of_rejection(p, q) + 1e-12).all())
    assert judge_rate(agreed, chance_of_coupling(p, q) + 0.2).p < 0.001


def test_zeros_take_no_part_in_the_closed_form():
    p = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    q = torch.tensor([[0.5, 0.0, 0.5], [0.0, 0.5, 0.5]], dtype=torch.float64)
    assert chance_of_coupling(p, q).tolist() == pytest.approx([1 / 3, 0.0])
    assert chance_of_coupling(p, p).tolist() == pytest.approx([1.0, 1.0])
