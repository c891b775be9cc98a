"""States that pass a norm and a matrix on their way into a draft are read as those that have passed them before."""

from dataclasses import replace

import pytest
import torch

from paceline.models.base import InputProjection, PendingInputs
from paceline.models.cpu.decoder import CpuDecoder
from paceline.models.native.layers import RMSNorm
from tests.kernels.cpu.models import native
from tests.kernels.cpu.test_fused_drafting import DTYPES, ROOM, asked

SIZE, MOST = 24, 2
TOLERANCE = {torch.bfloat16: 0.1, torch.float32: 1e-4, torch.float64: 1e-12}


def input_projection(lm, seed=0):
    generator = torch.Generator().manual_seed(seed)
    norm = RMSNorm(SIZE, 1e-6)
    product = torch.nn.Linear(SIZE, lm.config.hidden_size, bias=False)
    norm.weight.data = 1 + torch.randn(SIZE, generator=generator) / 3
    product.weight.data = torch.randn(product.weight.shape, generator=generator)
    return InputProjection(norm=norm.to(lm.dtype), product=product.to(lm.dtype))


def drafted(model, pending):
    cache, batch = model.new_cache(3, 24).view(), asked()
    valid = torch.tensor(ROOM).bool()
    tokens = torch.zeros(3, 5, dtype=torch.int64)
    tokens[:, 0] = batch.root
    assert model.draft_fused(batch, cache, pending, tokens, valid, greedy=True)
    return tokens, cache.storage.keys[:, :3], cache.storage.values[:, :3]


@torch.inference_mode()
@pytest.mark.parametrize("count", [(0, 1, 2), (2, 2, 2), (-1, 2, 0)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_input_projection_is_applied_to_states(dtype, count):
    model = CpuDecoder(native("grouped", dtype))
    states = torch.randn(3, MOST, SIZE, generator=torch.Generator().manual_seed(1)).to(dtype)
    asking = PendingInputs(
        count=torch.tensor(count), max_count=MOST, states=states, input_projection=input_projection(model.lm)
    )
    passed = asking.input_projection.product(asking.input_projection.norm(states))
    found = drafted(model, asking)
    wanted = drafted(model, replace(asking, states=passed, input_projection=None))
    for one, other in zip(found[1:], wanted[1:], strict=True):
        torch.testing.assert_close(one, other, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    if dtype is torch.float64:
        assert torch.equal(found[0], wanted[0])
    assert bool((found[1][:, 0, : count[0] + 1] != 0).any()) == (count[0] >= 0), "below 0 a row reads nothing"
    assert not bool(found[1][:, 2].any()), "an idle row reads nothing"


@torch.inference_mode()
def test_input_projection_is_recompiled_for_other_or_moved_weights():
    model = CpuDecoder(native("grouped", torch.float64))
    states = torch.randn(3, MOST, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    one, other = input_projection(model.lm), input_projection(model.lm, seed=1)
    asking = PendingInputs(count=torch.tensor([2, 2, 2]), max_count=MOST, states=states, input_projection=one)
    first, second = drafted(model, asking), drafted(model, replace(asking, input_projection=other))
    assert not torch.equal(first[1], second[1])
    one.product.weight.data = other.product.weight.data.clone()
    one.norm.weight.data.copy_(other.norm.weight)
    assert torch.equal(drafted(model, asking)[1], second[1])


@torch.inference_mode()
def test_count_is_clamped_to_max_count():
    """What lies behind the states is none of them."""
    model = CpuDecoder(native("grouped", torch.float32))
    states = torch.randn(3, MOST, model.lm.config.hidden_size, generator=torch.Generator().manual_seed(1))
    wanted, found = (
        drafted(model, PendingInputs(count=torch.full((3,), count), max_count=MOST, states=states))
        for count in (MOST, MOST + 3)
    )
    assert all(torch.equal(one, other) for one, other in zip(wanted, found, strict=True))
