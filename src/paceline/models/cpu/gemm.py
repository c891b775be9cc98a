"""The CPU kernel's GEMMs on their own, for measuring a machine. B rows."""

from collections.abc import Callable

from torch import Tensor, nn

from paceline.models.cpu.packed_weights import gemm_with_layer, matrix_layout, pack_linear


def gemm_with_weight(weight: Tensor, *, packed: bool = True) -> Callable[[Tensor], Tensor]:
    """The GEMM of contiguous rows [B, in] with ``weight`` [out, in] as in a forward: [B, out].

    Packs a copy of the weight where loaded models have packed weights, unless ``packed`` is False.

    Raises KernelError if the kernel cannot be built.
    """
    packed = packed and matrix_layout(weight) is not None
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight.detach().clone() if packed else weight, requires_grad=False)
    return gemm_with_layer(pack_linear(layer) if packed else layer, weight.dtype)
