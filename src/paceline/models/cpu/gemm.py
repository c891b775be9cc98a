"""Products of the kernel by themselves, for measuring what a machine can do. B rows."""

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor, nn

from paceline.kernels.cpu.build import load_kernel
from paceline.kernels.cpu.structs import Kind, Operation
from paceline.models.cpu.packed_weights import can_pack, pack_linear, panel_rows
from paceline.models.cpu.program import set_weight
from paceline.models.loading import dtype_name


def gemm_with_weight(weight: Tensor, *, panels: bool = True) -> Callable[[Tensor], Tensor]:
    """The product of contiguous rows [B, in] with ``weight`` [out, in] as a forward multiplies: [B, out].

    The matrix is laid in panels, a copy, where models that are loaded have theirs there; not without ``panels``.

    Raises KernelError where the kernel cannot be built.
    """
    laid = panels and can_pack(weight, panel_rows())
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight.detach().clone() if laid else weight, requires_grad=False)
    return gemm_with_layer(pack_linear(layer) if laid else layer, weight.dtype)


def gemm_with_layer(layer: nn.Linear, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The same with the matrix of ``layer`` as it lies, of numbers or of integers, and rows of ``dtype``; no bias.

    Raises KernelError where the kernel cannot be built.
    """
    run = getattr(load_kernel(), f"paceline_linear_{dtype_name(dtype)}")
    run.restype = None
    operation = Operation(kind=Kind.LINEAR, inner=layer.in_features, outer=layer.out_features)
    held: list[Tensor] = []

    def point(tensor: Tensor, _: torch.dtype | None = None) -> int:
        held.append(tensor)
        return tensor.data_ptr()

    set_weight(operation, layer, point)

    def multiply(x: Tensor) -> Tensor:
        y = torch.empty(x.shape[0], layer.out_features, dtype=dtype)
        pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, y))
        run(ctypes.byref(operation), *pointers, *map(ctypes.c_int64, (x.shape[0], torch.get_num_threads())))
        return y

    return multiply
