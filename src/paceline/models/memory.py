"""Device memory: free bytes, weights in huge pages, zeros that take memory only when written, and freed memory."""

import ctypes
import mmap
import sys
from contextlib import suppress
from math import prod

import psutil
import torch
from torch import Tensor

HUGE_PAGE = 2 << 20  # bytes
ALIGNMENT = 64  # of every tensor, in bytes
_MADV_HUGEPAGE = 14  # Linux's MADV_HUGEPAGE
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
KEPT = 1 << 30  # bytes


def free_memory(device: torch.device | str) -> int:
    """Bytes that can still be allocated on ``device``, a CUDA device or the CPU."""
    device = torch.device(device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What the allocator keeps back counts as taken there, but serves the next tensor.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return psutil.virtual_memory().available


def copy_to_huge_pages(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of CPU tensors in one block of memory, in huge pages where the system has them.

    Weights are read from end to end in every step, and small pages cost a fifth of the speed. Empties ``tensors`` on
    the way, so that at most one is in memory twice, and returns freed memory to the system.
    """
    sizes = {name: -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for name, tensor in tensors.items()}
    whole = torch.empty(sum(sizes.values()) + HUGE_PAGE, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_PAGE
    _advise_huge_pages(whole[start:])
    copies: dict[str, Tensor] = {}
    for name, size in sizes.items():
        tensor = tensors.pop(name)
        copies[name] = whole[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        start += size
        del tensor
    _trim()
    return copies


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros on the CPU that take memory page by page as they are written; on Windows all of it at once."""
    size = prod(shape) * dtype.itemsize
    if size == 0 or sys.platform == "win32":
        return torch.zeros(shape, dtype=dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype, count=prod(shape)).view(shape)


def keep_freed_memory() -> None:
    """Let the allocator of the process keep what is freed, up to a gibibyte, for what is allocated next.

    By default each large tensor on the CPU is new memory, and the system clears every page of it at the first touch,
    which takes longer than most operations on it. No effect where the C library is not glibc.
    """
    if sys.platform == "linux":
        with suppress(AttributeError):
            libc = ctypes.CDLL(None)
            libc.mallopt(ctypes.c_int(_M_MMAP_THRESHOLD), ctypes.c_int(KEPT))
            libc.mallopt(ctypes.c_int(_M_TRIM_THRESHOLD), ctypes.c_int(KEPT))


def _advise_huge_pages(piece: Tensor) -> None:
    """Request huge pages, before the first touch; no effect where there are none."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.madvise(ctypes.c_void_p(piece.data_ptr()), ctypes.c_size_t(piece.nbytes), ctypes.c_int(_MADV_HUGEPAGE))


def _trim() -> None:
    """Return freed memory to the system, where the allocator would keep it."""
    if sys.platform == "linux":
        with suppress(AttributeError):  # not every C library keeps any
            ctypes.CDLL(None).malloc_trim(0)
