"""Outputs in 16-bit floats are those of float32, rounded to nearest with ties to even."""

import pytest
import torch

from paceline.models.cpu.gemm import gemm_with_weight

FACTORS = (1.0, -1.0, 1.0078125, 0.3, 2.0**-9, 2.0**-12, 3e4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_products_of_two_numbers_are_rounded_to_nearest_even(dtype):
    """Every bit pattern times some factors: float32 holds these products exactly."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)[:, None]
    weight = torch.tensor(FACTORS).to(dtype)[:, None]
    exact = x.float() * weight.float().T
    found, wanted = gemm_with_weight(weight, packed=False)(x), exact.to(dtype)
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    if dtype == torch.bfloat16:  # AVX512-BF16 takes denormal floats as zeros
        same |= (x.float().abs() < 2.0**-126) | (exact.abs() < 2.0**-126)
    assert same.all()
