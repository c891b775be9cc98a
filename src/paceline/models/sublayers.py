"""Which sub-layers of a decoder a forward leaves out: attention and MLP of each layer, one by one."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from paceline.models.base import LM


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class SkippedSublayers:
    """Layers without their attention, and layers without their MLP; the residual stream passes by what is skipped."""

    attention: frozenset[int] = frozenset()
    mlp: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.attention) + len(self.mlp)

    def __str__(self) -> str:
        """As options of a drafter: ``attention=3-5;8,mlp=2;4``, or ``nothing``."""
        parts = {"attention": self.attention, "mlp": self.mlp}
        return ",".join(f"{name}={format_layers(layers)}" for name, layers in parts.items() if layers) or "nothing"

    def check(self, num_layers: int) -> None:
        """Raise ValueError for a layer that a model of ``num_layers`` does not have."""
        for name, layers in (("attention", self.attention), ("mlp", self.mlp)):
            wrong = sorted(layer for layer in layers if not 0 <= layer < num_layers)
            if wrong:
                raise ValueError(
                    f"{name}={format_layers(layers)}: the model has no layer {wrong[0]}; give layers from 0 to "
                    f"{num_layers - 1}"
                )


@runtime_checkable
class LayerSkipping(Protocol):
    """An LM that can run without some of its sub-layers."""

    def without(self, skipped: SkippedSublayers) -> LM:
        """The same LM on the same weights and caches, without ``skipped``. Raises ValueError for unknown layers."""
        ...


def parse_layers(text: str) -> frozenset[int]:
    """The layers of ``3-5;8``. Raises ValueError for anything else."""
    found: set[int] = set()
    for part in text.split(";"):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        if not first.isdecimal() or (dash and not (last.isdecimal() and int(first) <= int(last))):
            raise ValueError(f"layers {text!r}: write numbers and ranges, such as 3-5;8")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def format_layers(layers: Iterable[int]) -> str:
    """``layers`` as ``parse_layers`` reads them."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ";".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
