"""One product of the kernel by itself, for measuring what a machine can do. B rows."""

import ctypes

import torch
from torch import Tensor

from paceline.models.cpu.build import load_kernel
from paceline.models.loading import name_of


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """``x`` [B, in] times ``weight`` [out, in], both contiguous, as a forward multiplies: [B, out].

    Raises KernelError where the kernel cannot be built.
    """
    run = getattr(load_kernel(), f"paceline_product_{name_of(weight.dtype)}")
    run.restype = None
    y = torch.empty(x.shape[0], weight.shape[0], dtype=weight.dtype)
    pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (weight, x, y))
    sizes = (x.shape[0], weight.shape[1], weight.shape[0], torch.get_num_threads())
    run(*pointers, *map(ctypes.c_int64, sizes))
    return y
