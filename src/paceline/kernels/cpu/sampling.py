"""Sampling and filtered scores by the CPU kernel, in one call for all rows and nodes.

R rows, n nodes, V vocabulary.
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
from paceline.kernels.cpu.structs import LogitsBatch, SamplingOptions

NAMES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}
_ANY_POSITION = torch.zeros(1, 1, dtype=torch.int64)  # for calls that use no noise


def sampling_options_of(sampling: SamplingState) -> SamplingOptions:
    """Pointers to the rows' sampling options; later changes of their values are seen."""
    return SamplingOptions(
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


def is_philox(noise: Noise) -> bool:
    """Whether ``noise`` is the Philox noise that the kernel generates itself."""
    return type(noise) in (Philox, CpuNoise)


def load_functions(operation: str) -> dict[torch.dtype, Callable[..., None]]:
    """The kernel's functions for ``operation``, by dtype of the logits. Raises KernelError if it cannot be built."""
    found = {dtype: getattr(load_kernel(), f"paceline_{operation}_{name}") for dtype, name in NAMES.items()}
    for function in found.values():
        function.restype = None
    return found


@final
class KernelSampler:
    """Samples by the kernel with the options of ``sampling``, whose tensors it points to.

    Raises KernelError if the kernel cannot be built.
    """

    def __init__(self, *, sampling: SamplingState) -> None:
        self._sample, self._argmax, self._warp = map(load_functions, ("sample", "argmax", "warp"))
        self._options = sampling_options_of(sampling)
        self._options_ref = ctypes.byref(self._options)

    def pick(self, logits: Tensor, position: Tensor) -> Tensor:
        """The tokens [R, n] of core/batch's ``pick`` for ``logits`` [R, n, V] and ``position`` [R, n] or [R, 1]."""
        out = torch.empty(logits.shape[:2], dtype=torch.int64)
        self._run(self._sample, logits, position, out)
        return out

    def argmax(self, logits: Tensor) -> Tensor:
        """The argmax tokens [R, n], whatever the sampling options."""
        out = torch.empty(logits.shape[:2], dtype=torch.int64)
        self._run(self._argmax, logits, _ANY_POSITION, out)
        return out

    def warp(self, logits: Tensor) -> Tensor:
        """The scores [R, n, V] of core/batch's ``scores``."""
        wide = logits.dtype == torch.float64
        out = torch.empty(logits.shape, dtype=torch.float64 if wide else torch.float32)
        self._run(self._warp, logits, _ANY_POSITION, out)
        return out

    def _run(
        self,
        functions: dict[torch.dtype, Callable[..., None]],
        logits: Tensor,
        position: Tensor,
        out: Tensor,
    ) -> None:
        run = functions.get(logits.dtype)
        if run is None:  # float16 has no kernel; float32 represents it exactly
            logits, run = logits.float(), functions[torch.float32]
        if logits.stride(-1) != 1:
            logits = logits.contiguous()
        rows, nodes, size = logits.shape
        positions = position.expand(rows, nodes)
        batch = LogitsBatch(
            rows,
            nodes,
            size,
            torch.get_num_threads(),
            logits.data_ptr(),
            *logits.stride()[:2],
            positions.data_ptr(),
            *positions.stride(),
            out.data_ptr(),
        )
        run(self._options_ref, ctypes.byref(batch))
