"""Which implementation of a forward and of what surrounds it a step runs: the fastest there is, the plain one at worst.

The only place that knows there is more than one. Every fast path gives what the eager decoder gives.
"""

import logging
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.core.parts import Parts
from paceline.decode import Decoder
from paceline.engine.graphs import CudaGraphs, GraphedStep
from paceline.engine.reports import AtOnce, Overlapped, Reports
from paceline.models.base import LM
from paceline.models.cpu.build import KernelError
from paceline.models.cpu.ending import CpuBatch, CpuStats
from paceline.models.cpu.noise import CpuNoise
from paceline.models.cpu.panels import lay_in_panels
from paceline.models.cpu.product import product_with
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


def lay_out(lm: LM, *, beside: nn.Module | None = None) -> None:
    """Lay the weights of ``lm`` as ``fastest`` reads them best; it stays what it was.

    Nobody may hold them but ``beside``, whose parts are left as they are.
    """
    if isinstance(lm, DecoderLM) and isinstance(fastest(lm), CpuDecoder):
        lay_in_panels(lm, beside=beside)


def product_for(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """The product of rows [B, in] with ``weight`` [out, in] that native models of this precision run here."""
    if weight.device.type == "cpu" and weight.dtype in DTYPES:
        try:
            return product_with(weight)
        except KernelError as error:
            _warn(str(error))
    return lambda x: F.linear(x, weight)


def parts_for(device: torch.device) -> Parts:
    """Everything of a step but its models, by the fastest way to the same texts."""
    if device.type != "cpu":
        return Parts()
    try:
        return Parts(noise=CpuNoise(), batch=CpuBatch, stats=CpuStats)
    except KernelError as error:
        _warn(str(error))
        return Parts()


def step_for(decoder: Decoder) -> Callable[[], None]:
    """What does the steps of ``decoder``: itself, or recordings of what it calls on the device."""
    if decoder.batch.device.type != "cuda" or not isinstance(decoder.target, DecoderLM):
        return decoder.step
    return GraphedStep(decoder=decoder, graphs=CudaGraphs(decoder.batch.device))


def reports_for(decoder: Decoder) -> Reports:
    """How the steps of ``decoder`` are read: while the next one runs, where the device runs behind the host."""
    return Overlapped(decoder) if decoder.batch.device.type == "cuda" else AtOnce(decoder)


@cache
def _warn(reason: str) -> None:
    logger.warning("models run eagerly, which is slower: %s", reason)
