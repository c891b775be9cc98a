"""Philox noise (core/noise) by the CPU kernel: the same random words and, up to rounding, the same samples."""

import ctypes
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from paceline.core.noise import Key, tag_of
from paceline.kernels.cpu.instruction_set import current_set, load_kernel
from paceline.kernels.cpu.operators import entry, kernel_op


@final
class KernelNoise:
    """Draws for Philox (core/noise.RandomKernel). Raises KernelError if the kernel cannot be built."""

    dtypes = frozenset({torch.float32, torch.float64})

    def __init__(self) -> None:
        self.isa = current_set()
        load_kernel(self.isa)

    def bits(self, key: Key, count: int) -> Tensor:
        """``count`` words [..., count], int64 holding 32 random bits each."""
        return random_words(self.isa, *_fields(key), tag_of(key), count)

    def uniforms(self, key: Key, count: int, dtype: torch.dtype) -> Tensor:
        """``count`` uniforms [..., count] in (0, 1)."""
        return uniforms(self.isa, *_fields(key), tag_of(key), count, dtype is torch.float64)

    def choose(self, scores: Tensor, key: Key) -> Tensor:
        """Samples by an exponential race (Gumbel-max); tokens that cannot win any more are skipped."""
        fields = _fields(key)
        shape = torch.broadcast_shapes(scores.shape[:-1], fields[0].shape)
        seed, position, step, node = (field.expand(shape).contiguous() for field in fields)
        scores = scores.expand(*shape, scores.shape[-1]).contiguous()
        return exponential_race(self.isa, seed, position, step, node, tag_of(key), scores)


def _fields(key: Key) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Seed, position, step and node in one shape."""
    given = (key.seed, key.position, torch.as_tensor(key.step), torch.as_tensor(key.node))
    seed, position, step, node = (field.contiguous() for field in torch.broadcast_tensors(*given))
    return seed, position, step, node


@kernel_op(lambda isa, seed, position, step, node, tag, count: seed.new_empty(*seed.shape, count))
def random_words(isa: str, seed: Tensor, position: Tensor, step: Tensor, node: Tensor, tag: int, count: int) -> Tensor:
    """``count`` words [..., count] of every key; its fields are contiguous and of one shape."""
    out = torch.empty(*seed.shape, count, dtype=torch.int64)
    _run(entry(isa, "philox_words"), (seed, position, step, node), tag, count, out)
    return out


@kernel_op(
    lambda isa, seed, position, step, node, tag, count, wide: seed.new_empty(
        *seed.shape, count, dtype=torch.float64 if wide else torch.float32
    )
)
def uniforms(
    isa: str, seed: Tensor, position: Tensor, step: Tensor, node: Tensor, tag: int, count: int, wide: bool
) -> Tensor:
    """The same of uniforms in (0, 1), in double precision if ``wide``."""
    out = torch.empty(*seed.shape, count, dtype=torch.float64 if wide else torch.float32)
    _run(entry(isa, "uniforms", out.dtype), (seed, position, step, node), tag, count, out)
    return out


@kernel_op(lambda isa, seed, position, step, node, tag, scores: torch.empty_like(seed))
def exponential_race(
    isa: str, seed: Tensor, position: Tensor, step: Tensor, node: Tensor, tag: int, scores: Tensor
) -> Tensor:
    """The winner of every key's race over contiguous ``scores`` [..., V]."""
    out = torch.empty(seed.shape, dtype=torch.int64)
    run = entry(isa, "exponential_race", scores.dtype)
    _run(run, (seed, position, step, node), tag, scores.shape[-1], scores, out)
    return out


def _run(run: Callable[..., None], fields: tuple[Tensor, ...], tag: int, count: int, *tensors: Tensor) -> None:
    """Call ``run`` for all keys; ``tensors`` are its inputs and outputs."""
    run(
        ctypes.c_int64(fields[0].numel()),
        ctypes.c_int64(count),
        (ctypes.c_void_p * 4)(*(field.data_ptr() for field in fields)),
        ctypes.c_int64(tag),
        *(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors),
        ctypes.c_int64(torch.get_num_threads()),
    )
