"""Philox noise (core/noise) by the CPU kernel: the same random words and, up to rounding, the same samples."""

import ctypes
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from paceline.core.noise import Key, Philox, tag_of
from paceline.kernels.cpu.build import load_kernel

_DTYPES = {torch.float32: "float32", torch.float64: "float64"}


@final
class CpuNoise(Philox):
    """Philox on the CPU by the kernel. Raises KernelError if it cannot be built."""

    def __init__(self) -> None:
        kernel = load_kernel()
        self._words = _prepare(kernel.paceline_philox_words)
        self._uniforms = {
            dtype: _prepare(getattr(kernel, f"paceline_uniforms_{name}")) for dtype, name in _DTYPES.items()
        }
        self._kernel_race = {
            dtype: _prepare(getattr(kernel, f"paceline_exponential_race_{name}")) for dtype, name in _DTYPES.items()
        }

    def bits(self, key: Key, count: int) -> Tensor:
        """``count`` words [..., count], int64 holding 32 random bits each; the torch operations under torch.compile."""
        if torch.compiler.is_compiling():
            return super().bits(key, count)
        fields = _fields(key)
        out = torch.empty(*fields[0].shape, count, dtype=torch.int64)
        _run(self._words, key, fields, count, out)
        return out

    def uniforms(self, key: Key, count: int, dtype: torch.dtype) -> Tensor:
        """``count`` uniforms [..., count] in (0, 1); the torch operations under torch.compile."""
        if torch.compiler.is_compiling() or dtype not in self._uniforms:
            return super().uniforms(key, count, dtype)
        fields = _fields(key)
        out = torch.empty(*fields[0].shape, count, dtype=dtype)
        _run(self._uniforms[dtype], key, fields, count, out)
        return out

    def choose(self, scores: Tensor, key: Key) -> Tensor:
        """Samples by an exponential race (Gumbel-max); tokens that cannot win any more are skipped."""
        if torch.compiler.is_compiling() or scores.dtype not in self._kernel_race:
            return super().choose(scores, key)
        fields = _fields(key)
        shape = torch.broadcast_shapes(scores.shape[:-1], fields[0].shape)
        fields = [field.expand(shape).contiguous() for field in fields]
        scores = scores.expand(*shape, scores.shape[-1]).contiguous()
        out = torch.empty(shape, dtype=torch.int64)
        _run(self._kernel_race[scores.dtype], key, fields, scores.shape[-1], scores, out)
        return out


def _prepare(function: Any) -> Callable[..., None]:
    function.restype = None
    return function


def _fields(key: Key) -> list[Tensor]:
    """Seed, position, step and lane in one shape."""
    given = (key.seed, key.position, torch.as_tensor(key.step), torch.as_tensor(key.node))
    return [field.contiguous() for field in torch.broadcast_tensors(*given)]


def _run(function: Callable[..., None], key: Key, fields: list[Tensor], count: int, *tensors: Tensor) -> None:
    """Call ``function`` for all keys; ``tensors`` are its inputs and outputs."""
    function(
        ctypes.c_int64(fields[0].numel()),
        ctypes.c_int64(count),
        (ctypes.c_void_p * 4)(*(field.data_ptr() for field in fields)),
        ctypes.c_int64(tag_of(key)),
        *(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors),
        ctypes.c_int64(torch.get_num_threads()),
    )
