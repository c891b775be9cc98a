"""What one forward of a model has to read and to compute, and the least time that takes: docs/performance.md in code.

Pure functions of a model's shape and a machine's rates (engine/rates); runs and measures nothing.
"""

from dataclasses import dataclass

from paceline.engine.rates import Rates
from paceline.models.decoder import DecoderLM
from paceline.models.loading import name_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one forward of a model has to read and to compute."""

    dtype: str
    weight_bytes: int  # W: all weights that are multiplied with; of an embedding that is no head only rows are read
    num_weights: int  # P: multiplied with once per node
    slot_bytes: int  # K: keys and values of one token
    slot_flops: int  # A: operations of one node's attention with one slot


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
    """From a decoder's shapes; its weights may be on the meta device."""
    config = lm.config
    looked_up = {"position.weight"} if config.tied_head else {"position.weight", "embed.weight"}
    num_weights = sum(part.numel() for name, part in lm.named_parameters() if name not in looked_up)
    return Work(
        dtype=name_of(lm.dtype),
        weight_bytes=num_weights * lm.dtype.itemsize,
        num_weights=num_weights,
        slot_bytes=lm.slot_bytes,
        slot_flops=4 * config.num_layers * config.num_heads * config.head_dim,
    )


def bound(work: Work, rates: Rates, *, rows: int, nodes: float, slots: int) -> Bound:
    """The least time of a forward of ``nodes`` nodes in each of ``rows`` rows, every one reading ``slots`` slots.

    ``nodes`` may be a mean over steps.
    """
    return Bound(
        memory=(work.weight_bytes + rows * slots * work.slot_bytes) / rates.read,
        arithmetic=rows * nodes * (2 * work.num_weights + slots * work.slot_flops) / rates.products[work.dtype].peak,
    )
