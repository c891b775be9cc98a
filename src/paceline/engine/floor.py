"""What one forward of a model has to read and to compute, and the least time that takes: docs/performance.md in code.

Pure functions of a model's shape and a machine's rates (engine/rates); runs and measures nothing.
"""

from dataclasses import dataclass

from torch import nn

from paceline.engine.rates import Rates
from paceline.models.decoder import DecoderLM
from paceline.models.loading import name_of
from paceline.models.quantised import SCHEMES

QUANTISED = tuple(SCHEMES.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one forward of a model has to read and to compute."""

    dtype: str
    weight_bytes: int  # W: all weights that are multiplied with; of an embedding that is no head only rows are read
    num_weights: int  # P: multiplied with once per node
    slot_bytes: int  # K: keys and values of one token
    slot_flops: int  # A: operations of one node's attention with one slot
    quantization: str | None = None  # how its matrices lie in memory (models/quantised)

    @property
    def products(self) -> str:
        """Under which name the rates of its products stand."""
        return self.dtype if self.quantization is None else f"{self.dtype} {self.quantization}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The least seconds of one forward, by each of its two limits."""

    memory: float
    arithmetic: float

    @property
    def seconds(self) -> float:
        return max(self.memory, self.arithmetic)

    @property
    def binding(self) -> str:
        """Which of the two is the higher."""
        return "memory" if self.memory >= self.arithmetic else "arithmetic"


def work_of(lm: DecoderLM) -> Work:
    """From a decoder's shapes; its weights may be on the meta device.

    Matrices of integers count as many bytes as they take with their scales, and the numbers that they stand for.
    """
    config = lm.config
    looked_up = {lm.position} if lm.head is None else {lm.position, lm.embed}
    modules = [module for module in lm.modules() if module not in looked_up]
    return Work(
        dtype=name_of(lm.dtype),
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


def bound(work: Work, rates: Rates, *, rows: int, nodes: float, slots: int) -> Bound:
    """The least time of a forward of ``nodes`` nodes in each of ``rows`` rows, every one reading ``slots`` slots.

    ``nodes`` may be a mean over steps.
    """
    return Bound(
        memory=(work.weight_bytes + rows * slots * work.slot_bytes) / rates.read,
        arithmetic=rows * nodes * (2 * work.num_weights + slots * work.slot_flops) / rates.products[work.products].peak,
    )
