"""The kernel's exponentials are as precise as their comments say, and SiLU is torch's, infinities included."""

import ctypes
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
import torch.nn.functional as F

from paceline.kernels.cpu.compile import compile_units, find_compiler, sets_of, this_architecture
from paceline.kernels.cpu.instruction_set import available_sets

SETS = [isa for isa in sets_of(this_architecture()) if isa.name in available_sets()]
each_set = pytest.mark.parametrize("isa", SETS, ids=lambda isa: isa.name)


@cache
def library(isa):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "functions.so"
        compile_units(find_compiler(), [Path(__file__).parent / "functions.cpp"], isa.flags, path, Path(folder))
        return ctypes.CDLL(str(path))


def called(isa, name, x):
    y = torch.empty_like(x)
    count = ctypes.c_int64(x.numel())
    getattr(library(isa), f"paceline_{name}")(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), count)
    return y


def between(low, high):
    return torch.linspace(low, high, 2**16, dtype=torch.float64).float()


@each_set
@pytest.mark.parametrize(
    ("name", "exact", "low", "high", "error"),
    [("exponential", torch.exp, -87.0, 88.3, 2e-7), ("power_of_two", torch.exp2, -125.9, 127.4, 3e-6)],
)
def test_exponentials_are_as_precise_as_their_comments_say(isa, name, exact, low, high, error):
    x = between(low, high)
    assert (called(isa, name, x).double() / exact(x.double()) - 1).abs().max() < error


@each_set
@pytest.mark.parametrize("name", ["exponential", "power_of_two"])
def test_exponentials_end_at_zero_and_infinity(isa, name):
    least, most = torch.finfo(torch.float32).smallest_normal, torch.finfo(torch.float32).max
    ends = torch.tensor([-torch.inf, -most, -200.0, 200.0, most, torch.inf, torch.nan, 0.0])
    found = called(isa, name, ends.repeat(2))[:8]
    assert (found[:3] <= least).all() and (found[:3] >= 0).all()
    assert (found[3:6] == torch.inf).all() and found[6].isnan() and abs(found[7] - 1) < 1e-6


@each_set
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_silu_of_every_half_is_that_of_torch_or_the_next_number(isa, dtype):
    x = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    found, wanted = called(isa, f"silu_{str(dtype).removeprefix('torch.')}", x), F.silu(x.double()).to(dtype)
    assert torch.equal(found.isfinite(), wanted.isfinite()) and torch.equal(found.isnan(), wanted.isnan())
    finite = wanted.isfinite()
    steps = (found.view(torch.int16).int() - wanted.view(torch.int16).int()).abs()[finite]
    small = (found.double() - wanted.double()).abs()[finite] < 1e-35  # denormal results may be zeros
    assert ((steps <= 1) | small).all()
    assert (steps > 0).float().mean() < 0.02


@each_set
def test_silu_of_floats_is_that_of_torch(isa):
    most = torch.finfo(torch.float32).max
    ends = torch.tensor([-torch.inf, -most, -1e30, -100.0, 100.0, most, torch.inf, torch.nan] * 2)
    x = torch.cat([between(-100, 100), ends])
    found, wanted = called(isa, "silu_float32", x), F.silu(x)
    torch.testing.assert_close(found, wanted, rtol=4e-7, atol=1e-36, equal_nan=True)
