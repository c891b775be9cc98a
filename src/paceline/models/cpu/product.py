"""Products of the kernel by themselves, for measuring what a machine can do. B rows."""

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from paceline.models.cpu.build import load_kernel
from paceline.models.cpu.layout import Kind, Operation, Weights
from paceline.models.cpu.panels import fits_panels, panel_width, to_panels
from paceline.models.loading import name_of


def product_with(weight: Tensor, *, panels: bool = True) -> Callable[[Tensor], Tensor]:
    """The product of contiguous rows [B, in] with ``weight`` [out, in] as a forward multiplies: [B, out].

    The matrix is laid in panels, a copy, where models that are loaded have theirs there; not without ``panels``.

    Raises KernelError where the kernel cannot be built.
    """
    run = getattr(load_kernel(), f"paceline_product_{name_of(weight.dtype)}")
    run.restype = None
    width = panel_width()
    laid = panels and fits_panels(weight, width)
    matrix = to_panels(weight, width) if laid else weight
    outer, inner = weight.shape
    operation = Operation(
        kind=Kind.LINEAR,
        variant=Weights.PANELS if laid else Weights.FLOATS,
        inner=inner,
        outer=outer,
        weight=matrix.data_ptr(),
    )

    def multiply(x: Tensor) -> Tensor:
        y = torch.empty(x.shape[0], outer, dtype=matrix.dtype)
        pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, y))
        run(ctypes.byref(operation), *pointers, *map(ctypes.c_int64, (x.shape[0], torch.get_num_threads())))
        return y

    return multiply
