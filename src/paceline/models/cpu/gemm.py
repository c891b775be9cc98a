"""The CPU kernel's GEMMs on their own, for measuring a machine. B rows."""

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor, nn

from paceline.kernels.cpu.instruction_set import current_set, load_kernel
from paceline.kernels.cpu.structs import Kind, Operation
from paceline.models.cpu.operations import set_weight
from paceline.models.cpu.packed_weights import matrix_layout, pack_linear, packed_set
from paceline.models.loading import dtype_name


def gemm_with_weight(weight: Tensor, *, packed: bool = True) -> Callable[[Tensor], Tensor]:
    """The GEMM of contiguous rows [B, in] with ``weight`` [out, in] as in a forward: [B, out].

    Packs a copy of the weight where loaded models have packed weights, unless ``packed`` is False.

    Raises KernelError if the kernel cannot be built.
    """
    packed = packed and matrix_layout(weight) is not None
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight.detach().clone() if packed else weight, requires_grad=False)
    return gemm_with_layer(pack_linear(layer) if packed else layer, weight.dtype)


def gemm_with_layer(layer: nn.Linear | nn.Embedding, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The same with the weight of ``layer`` as stored, quantized or not, its bias, and rows of ``dtype``.

    An embedding table is that of the LM head which is tied to it.

    Raises KernelError if the kernel cannot be built.
    """
    run = getattr(load_kernel(packed_set(layer) or current_set()), f"paceline_linear_{dtype_name(dtype)}")
    run.restype = None
    if isinstance(layer, nn.Embedding):
        inner, outer = layer.embedding_dim, layer.num_embeddings
    else:
        inner, outer = layer.in_features, layer.out_features
    operation = Operation(kind=Kind.LINEAR, inner=inner, outer=outer)
    refs: list[object] = [layer]  # what the operation points into

    def point(tensor: Tensor, _: torch.dtype | None = None) -> int:
        refs.append(tensor)
        return tensor.data_ptr()

    set_weight(operation, layer, point)
    if isinstance(layer, nn.Linear) and layer.bias is not None:
        operation.bias = point(layer.bias)

    def multiply(x: Tensor) -> Tensor:
        assert refs and x.is_contiguous() and x.dtype == dtype
        y = torch.empty(x.shape[0], outer, dtype=dtype)
        pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, y))
        run(ctypes.byref(operation), *pointers, *map(ctypes.c_int64, (x.shape[0], torch.get_num_threads())))
        return y

    return multiply
