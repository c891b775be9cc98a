"""Which implementation of a forward and of what surrounds it a step runs: the fastest there is, the plain one at worst.

The only place that knows there is more than one. Every fast path gives what the eager decoder gives.
"""

import logging
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.core.parts import Parts
from paceline.models.base import LM
from paceline.models.cpu.build import KernelError, load_kernel
from paceline.models.cpu.ending import CpuBatch, CpuStats
from paceline.models.cpu.noise import CpuNoise
from paceline.models.cpu.product import multiply
from paceline.models.cpu.program import DTYPES, UnsupportedError
from paceline.models.cpu.runtime import CpuDecoder
from paceline.models.decoder import DecoderLM

logger = logging.getLogger("paceline")


def fastest(lm: LM) -> LM:
    """``lm`` itself, or what computes the same on the same weights in less time."""
    if not isinstance(lm, DecoderLM) or lm.device.type != "cpu":
        return lm
    try:
        return CpuDecoder(lm)
    except KernelError as error:
        _warn(str(error))
    except UnsupportedError as error:
        logger.info("the CPU kernel does not know this model (%s): it runs eagerly", error)
    return lm


def product_for(dtype: torch.dtype, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    """The product of rows [B, in] with weights [out, in] that native models of this precision run here."""
    if device.type != "cpu" or dtype not in DTYPES:
        return F.linear
    try:
        load_kernel()
    except KernelError as error:
        _warn(str(error))
        return F.linear
    return multiply


def parts_for(device: torch.device) -> Parts:
    """Everything of a step but its models, by the fastest way to the same texts."""
    if device.type != "cpu":
        return Parts()
    try:
        return Parts(noise=CpuNoise(), batch=CpuBatch, stats=CpuStats)
    except KernelError as error:
        _warn(str(error))
        return Parts()


@cache
def _warn(reason: str) -> None:
    logger.warning("models run eagerly, which is slower: %s", reason)
