"""Weights copied to huge pages are unchanged and aligned; unwritten slots take no memory; freed memory is kept."""

import subprocess
import sys

import psutil
import pytest
import torch

from paceline.models import memory
from paceline.models.backend import fastest
from paceline.models.cpu.decoder import CpuDecoder
from paceline.models.loading import load
from tests import tiny
from tests.api.checkpoints import pair


def test_copies_keep_values_and_share_one_aligned_block():
    given = {
        "a": torch.arange(7.0),
        "b": torch.randn(3, 5).bfloat16(),
        "c": torch.zeros(0, 4),
        "d": torch.randn(2, 2, 2),
    }
    copies = {name: tensor.clone() for name, tensor in given.items()}
    settled = memory.copy_to_huge_pages(given)
    assert not given and list(settled) == list(copies)
    for name, tensor in settled.items():
        assert tensor.dtype == copies[name].dtype and torch.equal(tensor, copies[name]) and tensor.is_contiguous()
        assert tensor.data_ptr() % memory.ALIGNMENT == 0 or not tensor.numel()
    assert len({tensor.untyped_storage().data_ptr() for tensor in settled.values()}) == 1
    settled["a"].fill_(-1.0)
    assert all(torch.equal(settled[name], copies[name]) for name in "bcd"), "pieces overlap"


def test_loaded_weights_share_one_block():
    parameters = list(load(pair().target).parameters())
    assert len({parameter.untyped_storage().data_ptr() for parameter in parameters}) == 1
    assert min(parameter.data_ptr() for parameter in parameters) % memory.HUGE_PAGE == 0


def test_lazy_zeros_are_zeros():
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        found = memory.lazy_zeros((3, 5, 7), dtype)
        assert found.shape == (3, 5, 7) and found.dtype == dtype and found.is_contiguous() and not found.any()
        found[1, 2] = 4
        assert found.sum() == 28
    assert memory.lazy_zeros((2, 0), torch.float32).shape == (2, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere zeros may be written at once")
def test_kernel_slots_take_memory_when_written():
    model = fastest(tiny.native(tiny.llama()))
    assert isinstance(model, CpuDecoder)
    resident, mib = psutil.Process().memory_info, 1 << 20
    before = resident().rss
    cache = model.new_cache(8, 100_000)
    size = cache.keys.nbytes + cache.values.nbytes
    assert size > 500 * mib and resident().rss - before < size / 100
    cache.keys[:, 3, :50_000] = 1.0
    written = 3 * 50_000 * 2 * 8 * 8
    assert written <= resident().rss - before < written + size / 100
    del cache
    assert resident().rss - before < size / 100


FAULTS = """
import resource
import torch
from paceline.models.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.empty(16 << 20, dtype=torch.uint8).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults()
keep_freed_memory()
faults()
print(first, faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc alone")
def test_freed_memory_is_not_cleared_again():
    """In a process of its own, for it is for good: pages are touched for the first time once, and not in each turn."""
    found = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    first, kept = map(int, found.stdout.split())
    assert first > 20 * (16 << 20) / 2**21 and kept < first / 10
