"""Bytes and flops of one forward of a native decoder, for hardware/roofline."""

from torch import nn

from paceline.hardware.roofline import Work
from paceline.models.loading import dtype_name
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.quantization import SCHEMES

QUANTISED = tuple(SCHEMES.values())


def forward_work(lm: DecoderLM) -> Work:
    """From a decoder's shapes; its weights may be on the meta device.

    Matrices of integers count as many bytes as they take with their scales, and the numbers that they stand for.
    """
    config = lm.config
    looked_up = {lm.position} if lm.head is None else {lm.position, lm.embed}
    modules = [module for module in lm.modules() if module not in looked_up]
    return Work(
        dtype=dtype_name(lm.dtype),
        weight_bytes=sum(part.nbytes for module in modules for part in module.parameters(recurse=False)),
        num_weights=sum(map(_count, modules)),
        slot_bytes=lm.slot_bytes,
        slot_flops=4 * config.num_layers * config.num_heads * config.head_dim,
        quantization=_scheme(lm),
    )


def _count(module: nn.Module) -> int:
    """Numbers that a module itself multiplies with or adds."""
    if isinstance(module, QUANTISED):
        return module.in_features * module.out_features + (0 if module.bias is None else module.out_features)
    return sum(part.numel() for part in module.parameters(recurse=False))


def _scheme(lm: DecoderLM) -> str | None:
    """That of its layers; a head may have another."""
    modules = list(lm.blocks.modules())
    return next((name for name, kind in SCHEMES.items() if any(isinstance(one, kind) for one in modules)), None)
