"""What one forward of a model has to read and to compute, and the least time that takes: docs/performance.md in code.

Pure functions of a model's shape and a machine's rates (hardware/rates); runs and measures nothing.
"""

from dataclasses import dataclass

from paceline.hardware.rates import Rates


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


def bound(work: Work, rates: Rates, *, rows: int, nodes: float, slots: int) -> Bound:
    """The least time of a forward of ``nodes`` nodes in each of ``rows`` rows, every one reading ``slots`` slots.

    ``nodes`` may be a mean over steps.
    """
    return Bound(
        memory=(work.weight_bytes + rows * slots * work.slot_bytes) / rates.read,
        arithmetic=rows * nodes * (2 * work.num_weights + slots * work.slot_flops) / rates.products[work.products].peak,
    )
