"""Memory of devices: how much is left, weights laid out so that they are read fast, and zeros that take none until they
are written. Knows nothing of models.
"""

import ctypes
import mmap
import sys
from contextlib import suppress
from math import prod

import psutil
import torch
from torch import Tensor

LARGE_PAGE = 2 << 20  # bytes
ALIGNMENT = 64  # of every tensor, in bytes
_USE_LARGE_PAGES = 14  # Linux's MADV_HUGEPAGE


def free_memory(device: torch.device | str) -> int:
    """Bytes that can still be allocated on ``device``, a CUDA device or the CPU."""
    device = torch.device(device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What the allocator keeps back counts as taken there, but serves the next tensor.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return psutil.virtual_memory().available


def copy_to_huge_pages(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous CPU tensors, copied side by side into one piece of memory, of large pages where the system has them.

    Weights are read from end to end in every step, and small pages cost a fifth of the speed. Empties ``tensors`` on
    the way, so that no more than one lies in memory twice; what they and their making took goes back to the system.
    """
    sizes = {name: -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for name, tensor in tensors.items()}
    whole = torch.empty(sum(sizes.values()) + LARGE_PAGE, dtype=torch.uint8)
    start = -whole.data_ptr() % LARGE_PAGE
    _advise(whole[start:])
    settled: dict[str, Tensor] = {}
    for name, size in sizes.items():
        tensor = tensors.pop(name)
        settled[name] = whole[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        start += size
        del tensor
    _give_back()
    return settled


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros on the CPU that take memory page by page as they are written; on Windows all of it at once."""
    size = prod(shape) * dtype.itemsize
    if size == 0 or sys.platform == "win32":
        return torch.zeros(shape, dtype=dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype, count=prod(shape)).view(shape)


def _advise(piece: Tensor) -> None:
    """Ask for large pages, before the first touch; nothing is lost where there are none."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.madvise(ctypes.c_void_p(piece.data_ptr()), ctypes.c_size_t(piece.nbytes), ctypes.c_int(_USE_LARGE_PAGES))


def _give_back() -> None:
    """Give memory that was freed to the system, where the allocator keeps it for itself."""
    if sys.platform == "linux":
        with suppress(AttributeError):  # not every C library keeps any
            ctypes.CDLL(None).malloc_trim(0)
