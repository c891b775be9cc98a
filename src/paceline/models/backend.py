"""Selects the fastest implementation of a forward for a model and machine, with the eager decoder as the fallback.

Every fast path is equivalent to the eager decoder.
"""

import logging
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.kernels.cpu.compile import KernelError
from paceline.kernels.cpu.instruction_set import load_kernel
from paceline.models.base import LM
from paceline.models.cpu.decoder import CpuDecoder
from paceline.models.cpu.gemm import gemm_with_weight
from paceline.models.cpu.operations import DTYPES, UnsupportedError
from paceline.models.cpu.packed_weights import gemm_with_layer, pack_linear, pack_linears
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.encoder_decoder import EncoderDecoderLM

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
        by_torch = lm.encoder if isinstance(lm, EncoderDecoderLM) and lm.encodes_by_torch else None
        pack_linears(lm, beside=beside, but=by_torch)


def gemm_for(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """The GEMM of rows [B, in] with ``weight`` [out, in] that native models of this precision run here."""
    if weight.device.type == "cpu" and weight.dtype in DTYPES:
        try:
            return gemm_with_weight(weight)
        except KernelError as error:
            warn_eager(str(error))
    return lambda x: F.linear(x, weight)


def pack_layer(layer: nn.Linear, dtype: torch.dtype) -> nn.Linear:
    """``layer``, a part of a model of ``dtype``, packed where kernels run it, else as it is."""
    return pack_linear(layer, dtype) if _has_kernels(layer, dtype) else layer


def linear_for(layer: nn.Module, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The product of ``x`` [..., in] of ``dtype`` with a linear layer, its bias included, as models run it here.

    ``layer`` may be the embedding that an LM head is tied to.
    """
    assert isinstance(layer, nn.Linear | nn.Embedding)
    if not _has_kernels(layer, dtype):
        return (lambda x: F.linear(x, layer.weight)) if isinstance(layer, nn.Embedding) else layer
    multiply = gemm_with_layer(layer, dtype)
    return lambda x: multiply(x.reshape(-1, x.shape[-1]).contiguous()).unflatten(0, x.shape[:-1])


def _has_kernels(module: nn.Module, dtype: torch.dtype) -> bool:
    """Whether kernels run products of ``dtype`` with the matrices of ``module``."""
    first = next(module.parameters(), None)
    if first is None or first.device.type != "cpu" or dtype not in DTYPES:
        return False
    try:
        load_kernel()
    except KernelError as error:
        warn_eager(str(error))
        return False
    return True


@cache
def warn_eager(reason: str) -> None:
    """Say once for each ``reason`` that the torch operations run in place of the kernel."""
    logger.warning("models run eagerly, which is slower: %s", reason)
