"""The roofline of one forward: bytes it reads, operations it computes, and the least time for both.

docs/performance.md derives the formulas.
"""

from dataclasses import dataclass

from paceline.hardware.rates import Rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one forward of a model has to read and to compute."""

    dtype: str
    weight_bytes: int  # W: all weights in products; an embedding that is not the LM head counts nothing
    num_weights: int  # P: multiplied with once per node
    slot_bytes: int  # K: keys and values of one token
    slot_flops: int  # A: operations of one node's attention with one slot
    quantization: str | None = None  # storage format of its matrices

    @property
    def products(self) -> str:
        """The key of its product rates in ``Rates.products``."""
        return self.dtype if self.quantization is None else f"{self.dtype} {self.quantization}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The least seconds of one forward, by memory bandwidth and by arithmetic."""

    memory: float
    arithmetic: float

    @property
    def seconds(self) -> float:
        return max(self.memory, self.arithmetic)

    @property
    def binding(self) -> str:
        """Which of the two limits is higher."""
        return "memory" if self.memory >= self.arithmetic else "arithmetic"


def bound(work: Work, rates: Rates, *, rows: int, nodes: float, slots: int) -> Bound:
    """The least time of a forward of ``nodes`` nodes in each of ``rows`` rows with ``slots`` cache slots each.

    ``nodes`` may be a mean over steps.
    """
    return Bound(
        memory=(work.weight_bytes + rows * slots * work.slot_bytes) / rates.read,
        arithmetic=rows * nodes * (2 * work.num_weights + slots * work.slot_flops) / rates.products[work.products].peak,
    )
