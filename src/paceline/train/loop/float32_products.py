"""Products of bfloat16 matrices by float32, on processors where torch multiplies bfloat16 several times slower."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

aten = torch.ops.aten
PRODUCTS: Final = frozenset(
    {
        *(aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default),
        *(aten.linear.default, aten.matmul.default),  # of these, and whole in inference mode alone
    }
)


@final
class Float32Products(TorchDispatchMode):
    """Within, products of bfloat16 on the CPU are products of float32, rounded once; all else is as it was.

    That is what torch computes too: it sums bfloat16 products in float32. Backward passes within are included.
    """

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in PRODUCTS and all(_slow(arg) for arg in args if isinstance(arg, Tensor)):
            return func(*tree_map(_widen, args), **(kwargs or {})).to(torch.bfloat16)
        return func(*args, **(kwargs or {}))


def fast_products(device: torch.device) -> AbstractContextManager[object]:
    """Within, products of bfloat16 on ``device`` run by whatever is fastest there.

    Without AVX-512 or instructions for bfloat16, oneDNN has no product of it and torch falls back to loops of its own.
    """
    return Float32Products() if device.type == "cpu" and not has_products() else nullcontext()


def has_products() -> bool:
    """Whether oneDNN multiplies bfloat16 on this processor."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _slow(tensor: Tensor) -> bool:
    return tensor.dtype == torch.bfloat16 and tensor.device.type == "cpu"


def _widen(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) else value
