"""The noise of core/noise by the kernel: the same words, and so the same tokens, in less time."""

import ctypes
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from paceline.core.noise import Key, Philox, tag_of
from paceline.models.cpu.build import load_kernel

_UNIFORMS = {torch.float32: "float32", torch.float64: "float64"}


@final
class CpuNoise(Philox):
    """Philox whose words the kernel makes, for keys on the CPU. Raises KernelError where it cannot be built."""

    def __init__(self) -> None:
        kernel = load_kernel()
        self._words = _prepare(kernel.paceline_words)
        self._uniforms = {
            dtype: _prepare(getattr(kernel, f"paceline_uniforms_{name}")) for dtype, name in _UNIFORMS.items()
        }

    def bits(self, key: Key, count: int) -> Tensor:
        """``count`` words [..., count], int64 holding 32 random bits each; traced by a compiler, made eagerly."""
        if torch.compiler.is_compiling():
            return super().bits(key, count)
        return _run(self._words, key, count, torch.int64)

    def uniforms(self, key: Key, count: int, dtype: torch.dtype) -> Tensor:
        """``count`` new numbers [..., count] between 0 and 1; traced by a compiler, made eagerly."""
        if torch.compiler.is_compiling() or dtype not in self._uniforms:
            return super().uniforms(key, count, dtype)
        return _run(self._uniforms[dtype], key, count, dtype)


def _prepare(function: Any) -> Callable[..., None]:
    function.restype = None
    return function


def _run(function: Callable[..., None], key: Key, count: int, dtype: torch.dtype) -> Tensor:
    given = (key.seed, key.position, torch.as_tensor(key.step), torch.as_tensor(key.lane))
    fields = [field.contiguous() for field in torch.broadcast_tensors(*given)]
    shape = fields[0].shape
    out = torch.empty(*shape, count, dtype=dtype)
    function(
        ctypes.c_int64(shape.numel()),
        ctypes.c_int64(count),
        (ctypes.c_void_p * 4)(*(field.data_ptr() for field in fields)),
        ctypes.c_int64(tag_of(key)),
        ctypes.c_void_p(out.data_ptr()),
        ctypes.c_int64(torch.get_num_threads()),
    )
    return out
