"""Which implementation of a model's forward the steps run: the fastest that this machine has, the eager one at worst.

The only place that knows there is more than one. Every fast path gives what the eager decoder gives.
"""

import logging
from functools import cache

from paceline.models.base import LM
from paceline.models.cpu.build import KernelError
from paceline.models.cpu.program import UnsupportedError
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


@cache
def _warn(reason: str) -> None:
    logger.warning("models run eagerly, which is slower: %s", reason)
