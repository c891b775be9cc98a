"""Which implementation of a forward and of what surrounds it a step runs: the fastest there is, the plain one at worst.

The only place that knows there is more than one. Every fast path gives what the eager decoder gives.
"""

import logging
from collections.abc import Callable
from functools import cache

import torch.nn.functional as F
from torch import Tensor, nn

from paceline.kernels.cpu.build import KernelError
from paceline.models.base import LM
from paceline.models.cpu.decoder import CpuDecoder
from paceline.models.cpu.gemm import gemm_with_weight
from paceline.models.cpu.packed_weights import pack_linears
from paceline.models.cpu.program import DTYPES, UnsupportedError
from paceline.models.native.decoder import DecoderLM

logger = logging.getLogger("paceline")


def fastest(lm: LM) -> LM:
    """``lm`` itself, or what computes the same on the same weights in less time."""
    if not isinstance(lm, DecoderLM) or lm.device.type != "cpu":
        return lm
    try:
        return CpuDecoder(lm)
    except KernelError as error:
        warn_eager(str(error))
    except UnsupportedError as error:
        logger.info("the CPU kernel does not know this model (%s): it runs eagerly", error)
    return lm


def pack_weights(lm: LM, *, beside: nn.Module | None = None) -> None:
    """Lay the weights of ``lm`` as ``fastest`` reads them best; it stays what it was.

    Nobody may hold them but ``beside``, whose parts are left as they are.
    """
    if isinstance(lm, DecoderLM) and isinstance(fastest(lm), CpuDecoder):
        pack_linears(lm, beside=beside)


def gemm_for(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """The product of rows [B, in] with ``weight`` [out, in] that native models of this precision run here."""
    if weight.device.type == "cpu" and weight.dtype in DTYPES:
        try:
            return gemm_with_weight(weight)
        except KernelError as error:
            warn_eager(str(error))
    return lambda x: F.linear(x, weight)


@cache
def warn_eager(reason: str) -> None:
    logger.warning("models run eagerly, which is slower: %s", reason)
