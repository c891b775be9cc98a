"""The warped distribution against a sort-based one, at boundaries and for every row's own options."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.sampling import FilterOrder, Sampling, SamplingState, keep_until
from tests import reference


def distribution_of(logits, *options):
    state = SamplingState(len(options), logits.device)
    state.assign(range(len(options)), list(options))
    return state.warp(logits).softmax(-1)


FILTERS = st.fixed_dictionaries(
    dict(
        top_k=st.sampled_from([0, 0, 1, 2, 5, 17, 40]),
        top_p=st.one_of(st.just(1.0), st.floats(0.01, 1)),
        min_p=st.one_of(st.just(0.0), st.floats(0, 0.5)),
        typical_p=st.one_of(st.just(1.0), st.floats(0.01, 1)),
        epsilon_cutoff=st.one_of(st.just(0.0), st.floats(0, 0.3)),
        eta_cutoff=st.one_of(st.just(0.0), st.floats(0, 0.3)),
    )
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    temperature=st.floats(0.1, 3),
    filters=FILTERS,
    order=st.sampled_from(FilterOrder),
    wide=st.booleans(),
    banned=st.integers(0, 30),
)
def test_the_distribution_equals_the_sorted_reference(seed, temperature, filters, order, wide, banned):
    dtype = torch.float64 if wide else torch.float32
    logits = 3 * torch.randn(1, 2, 31, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    logits[..., :banned] = -torch.inf
    own = distribution_of(logits.to(dtype), Sampling(temperature=temperature, order=order, **filters))
    for node in range(2):
        wanted = reference.warp(logits[0, node].numpy() / temperature, **filters, order=order.name.lower())
        got = own[0, node].double().numpy()
        if wide:
            np.testing.assert_allclose(got, wanted, atol=1e-12)
        else:  # the boundary may fall to the other side of a rounding
            assert np.abs(got - wanted).sum() < 1e-4 or abs((got > 0).sum() - (wanted > 0).sum()) <= 1


@pytest.mark.parametrize("order", FilterOrder)
def test_top_p_reaches_with_what_the_filters_before_it_left(order):
    """Of 0.5, 0.3, 0.1 and 0.1, min-p 0.3 leaves two, of which the first has 0.625 of the mass."""
    logits = torch.tensor([[[0.5, 0.3, 0.1, 0.1]]], dtype=torch.float64).log()
    distribution = distribution_of(logits, Sampling(temperature=1.0, top_p=0.6, min_p=0.3, order=order))
    assert int((distribution > 0).sum()) == {FilterOrder.TRANSFORMERS: 2, FilterOrder.VLLM: 1}[order]


def test_rows_follow_their_own_options():
    logits = torch.randn(9, 1, 20, dtype=torch.float64)
    options = [
        Sampling(),
        Sampling(temperature=0.5),
        Sampling(temperature=2.0, top_k=3),
        Sampling(temperature=1, top_p=0.5),
        Sampling(temperature=1, typical_p=0.4),
        Sampling(temperature=1, epsilon_cutoff=0.06),
        Sampling(temperature=1, eta_cutoff=0.1),
        Sampling(temperature=1, min_p=0.2, top_p=0.6),
        Sampling(temperature=1, min_p=0.2, top_p=0.6, order=FilterOrder.VLLM),
    ]
    together = distribution_of(logits, *options)
    for row, option in enumerate(options):
        torch.testing.assert_close(together[row], distribution_of(logits[row : row + 1], option)[0])
    assert together[0].max() == 1 and int((together[2] > 0).sum()) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_temperature_zero_is_one_hot_at_the_argmax_even_beside_sampled_rows(dtype):
    logits = torch.tensor([[[1.0, 5.0, 5.0 - 1e-3]], [[0.0, 1.0, 2.0]]], dtype=dtype)
    assert distribution_of(logits, Sampling(), Sampling(temperature=1.0))[0, 0].tolist() == [0, 1, 0]
    assert distribution_of(logits, Sampling(), Sampling())[1, 0].tolist() == [0, 0, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ties_at_the_boundary_are_all_kept(dtype):
    scores = torch.tensor([[3.0, 2.0, 2.0, 2.0, -1.0, -torch.inf]], dtype=dtype)
    kept = keep_until(scores, torch.ones_like(scores), torch.tensor([[2.0]], dtype=dtype))
    assert torch.isfinite(kept).tolist() == [[True, True, True, True, False, False]]
    zeros = torch.tensor([[0.0, -0.0, 0.0, -1.0]], dtype=dtype)
    assert torch.isfinite(keep_until(zeros, torch.ones_like(zeros), torch.ones(1, 1, dtype=dtype))).sum() == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_goal_beyond_the_whole_weight_keeps_everything(dtype):
    scores = torch.tensor([[-3.0, 0.0, -0.0, 2.0, -1e30]], dtype=dtype)
    assert torch.equal(keep_until(scores, scores.softmax(-1), torch.tensor([[torch.inf]], dtype=dtype)), scores)


def test_half_precision_logits_are_warped_in_single():
    logits = torch.randn(1, 1, 50).bfloat16()
    distribution = distribution_of(logits, Sampling(temperature=0.9))
    assert distribution.dtype == torch.float32
    torch.testing.assert_close(distribution[0, 0], (logits[0, 0].float() / 0.9).softmax(-1))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("typical_p", 0.0),
        ("typical_p", 1.01),
        ("epsilon_cutoff", -0.1),
        ("epsilon_cutoff", 1.0),
        ("eta_cutoff", -0.1),
        ("eta_cutoff", float("nan")),
        ("seed", -1),
        ("seed", 2**63),
    ],
)
def test_values_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"{field}={value}"):
        Sampling(**{field: value})
