"""Tokens chosen from logits, and laws made of them, as one call of the kernel for all rows and nodes.

R rows, n nodes, V vocabulary. Knows nothing of how texts grow.
"""

import ctypes
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from paceline.core.noise import Noise, Philox
from paceline.core.sampling import SamplingState
from paceline.kernels.cpu.build import load_kernel
from paceline.kernels.cpu.noise import CpuNoise
from paceline.kernels.cpu.structs import Choices, Options

NAMES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}
_ANYWHERE = torch.zeros(1, 1, dtype=torch.int64)  # a position, where choices depend on none


def options_of(sampling: SamplingState) -> Options:
    """How rows choose: the places of these tensors, not their values."""
    return Options(
        temperature=sampling.temperature.data_ptr(),
        top_p=sampling.top_p.data_ptr(),
        min_p=sampling.min_p.data_ptr(),
        typical_p=sampling.typical_p.data_ptr(),
        epsilon=sampling.epsilon_cutoff.data_ptr(),
        eta=sampling.eta_cutoff.data_ptr(),
        order=sampling.order.data_ptr(),
        top_k=sampling.top_k.data_ptr(),
        seed=sampling.seed.data_ptr(),
    )


def known(noise: Noise) -> bool:
    """Whether the kernel makes the numbers of ``noise``."""
    return type(noise) in (Philox, CpuNoise)


def prepared(what: str) -> dict[torch.dtype, Callable[..., None]]:
    """What the kernel has under a name, for every precision of logits. Raises KernelError where it cannot be built."""
    found = {dtype: getattr(load_kernel(), f"paceline_{what}_{name}") for dtype, name in NAMES.items()}
    for function in found.values():
        function.restype = None
    return found


@final
class Chooser:
    """The kernel's choices under the options of ``sampling``, whose tensors' places it keeps, not their values.

    Raises KernelError where the kernel cannot be built.
    """

    def __init__(self, *, sampling: SamplingState) -> None:
        self._pick, self._likeliest, self._warp = map(prepared, ("pick", "likeliest", "warp"))
        self._options = options_of(sampling)
        self._given = ctypes.byref(self._options)

    def pick(self, logits: Tensor, position: Tensor) -> Tensor:
        """What core/batch's ``pick`` gives [R, n] for ``logits`` [R, n, V] and ``position`` [R, n] or [R, 1]."""
        out = torch.empty(logits.shape[:2], dtype=torch.int64)
        self._run(self._pick, logits, position, out)
        return out

    def argmax(self, logits: Tensor) -> Tensor:
        """The likeliest tokens [R, n], however rows sample."""
        out = torch.empty(logits.shape[:2], dtype=torch.int64)
        self._run(self._likeliest, logits, _ANYWHERE, out)
        return out

    def warp(self, logits: Tensor) -> Tensor:
        """What core/batch's ``scores`` gives [R, n, V]."""
        wide = logits.dtype == torch.float64
        out = torch.empty(logits.shape, dtype=torch.float64 if wide else torch.float32)
        self._run(self._warp, logits, _ANYWHERE, out)
        return out

    def _run(
        self,
        functions: dict[torch.dtype, Callable[..., None]],
        logits: Tensor,
        position: Tensor,
        out: Tensor,
    ) -> None:
        run = functions.get(logits.dtype)
        if run is None:  # half precision that the kernel does not know; single holds all of its numbers
            logits, run = logits.float(), functions[torch.float32]
        if logits.stride(-1) != 1:
            logits = logits.contiguous()
        rows, nodes, size = logits.shape
        place = position.expand(rows, nodes)
        choices = Choices(
            rows,
            nodes,
            size,
            torch.get_num_threads(),
            logits.data_ptr(),
            *logits.stride()[:2],
            place.data_ptr(),
            *place.stride(),
            out.data_ptr(),
        )
        run(self._given, ctypes.byref(choices))
