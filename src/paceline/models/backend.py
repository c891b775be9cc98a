"""Selects the fastest implementation of a forward for a model and machine, with the eager decoder as the fallback.

Every fast path is equivalent to the eager decoder.
"""

import logging
from collections.abc import Callable
from functools import cache

import torch.nn.functional as F
from torch import Tensor, nn

from paceline.kernels.cpu.compile import KernelError
from paceline.models.base import LM
from paceline.models.cpu.decoder import CpuDecoder
from paceline.models.cpu.gemm import gemm_with_weight
from paceline.models.cpu.packed_weights import pack_linears
from paceline.models.cpu.program import DTYPES, UnsupportedError
from paceline.models.native.decoder import DecoderLM

logger = logging.getLogger("paceline")


def fastest(lm: LM) -> LM:
    """A faster LM over the same weights, or ``lm`` itself."""
    if not isinstance(lm, DecoderLM) or lm.device.type != "cpu":
        return lm
    try:
        return CpuDecoder(lm)
    except KernelError as error:
        warn_eager(str(error))
    except UnsupportedError as error:
        logger.info("the CPU kernel does not support this model (%s): it runs eagerly", error)
    return lm


def pack_weights(lm: LM, *, beside: nn.Module | None = None) -> None:
    """Pack the weights of ``lm`` in place for the implementation that ``fastest`` selects; its results stay the same.

    Nothing else may share them but ``beside``, whose parameters are not packed.
    """
    if isinstance(lm, DecoderLM) and isinstance(fastest(lm), CpuDecoder):
        pack_linears(lm, beside=beside)


def gemm_for(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """The GEMM of rows [B, in] with ``weight`` [out, in] that native models of this precision run here."""
    if weight.device.type == "cpu" and weight.dtype in DTYPES:
        try:
            return gemm_with_weight(weight)
        except KernelError as error:
            warn_eager(str(error))
    return lambda x: F.linear(x, weight)


@cache
def warn_eager(reason: str) -> None:
    """Say once for each ``reason`` that the torch operations run in place of the kernel."""
    logger.warning("models run eagerly, which is slower: %s", reason)
