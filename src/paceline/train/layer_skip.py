"""LayerSkip (2404.16710): a target that learns to say early what it says at its end. Knows no optimiser and no files.

Layers count from 0 to L - 1, steps from 0 to T - 1. B rows, V vocabulary, H hidden size; tap l + 1 is the residual
stream after layer l.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, final

import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveInt
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from paceline.models.native.decoder import DecoderLM
from paceline.train.batches import TrainBatch
from paceline.train.terms import Term, on_text


class LayerSkipSection(BaseModel):
    """How layers are skipped, and which say something of their own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dropout: float = Field(default=0.1, ge=0, lt=1)  # chance that a row skips the last layer; the first never is
    ramp: bool = False  # chances grow from nothing at the first step; meant for targets from scratch
    exit_scale: NonNegativeFloat = 0.2  # weight of early exits beside the last layer; 0: they are not trained
    curriculum: Literal["none", "rotational", "gradual"] = "rotational"
    every: PositiveInt = 8  # rotational: each exit is trained in one of so many steps


@final
class LayerSkip:
    """The recipe for a target of ``num_layers`` layers over ``num_steps`` steps.

    *Layer dropout.* In step t a row skips layer l with the chance dropout * (exp(l ln 2 / (L - 1)) - 1), which is 0
    at the first layer and ``dropout`` at the last; with ``ramp`` times exp(t ln 2 / (T - 1)) - 1.

    *Early exits.* The target's own norm and head read the stream after every layer, and the loss is the mean of all
    cross-entropies under the weights e(l) = exit_scale * (0 + 1 + ... + l), and of the last layer
    L - 1 + exit_scale * (0 + 1 + ... + (L - 2)). So the exit after the first layer has none.

    *Curriculum.* Which exits count: all; "rotational", those whose l and t have the same remainder by ``every``;
    "gradual", from the deepest to the first, one more every T / (2 L) steps. The last layer always does. Weights are
    normalised over those that count.

    Raises ValueError for a target of a single layer.
    """

    def __init__(self, section: LayerSkipSection, *, num_layers: int, num_steps: int) -> None:
        if num_layers < 2:
            raise ValueError(
                f"target.layer_skip: the target has {num_layers} layer, and an early exit needs 2 at least; give it "
                "more layers, or leave layer_skip out"
            )
        self.section, self.num_layers, self.num_steps = section, num_layers, num_steps

    def chances(self, step: int) -> Tensor:
        """Of skipping each layer: [L]."""
        depth = torch.arange(self.num_layers, dtype=torch.float64) / (self.num_layers - 1)
        return self._highest(step) * (torch.exp(depth * math.log(2)) - 1)

    def skipped(self, step: int, generators: Sequence[torch.Generator]) -> Tensor | None:
        """Which layers each row skips, bool [B, L], drawn by its own generator; None where none can be."""
        if self._highest(step) == 0:
            return None
        drawn = [torch.rand(self.num_layers, generator=one, dtype=torch.float64) for one in generators]
        return torch.stack(drawn) < self.chances(step)

    def weights(self, step: int) -> dict[int, float]:
        """Share in the loss by tap, of those that have one; they add up to 1."""
        last, scale, counts = self.num_layers - 1, self.section.exit_scale, CURRICULA[self.section.curriculum]
        exits = [layer for layer in range(last) if counts(layer, step, self)]
        found = {layer + 1: scale * layer * (layer + 1) / 2 for layer in exits}
        found[last + 1] = last + scale * last * (last - 1) / 2
        total = sum(found.values())
        return {tap: weight / total for tap, weight in found.items() if weight > 0}

    def loss(
        self,
        name: str,
        model: DecoderLM,
        logits: Tensor,
        hidden: Mapping[int, Tensor],
        batch: TrainBatch,
        weights: Mapping[int, float],
    ) -> Term:
        """The exits' cross-entropies beside that of ``logits`` [B, T, V], under ``weights`` by tap of ``hidden``.

        Measured are the last layer's and the mean of the exits. The logits of one exit are held at once.
        """
        last = on_text(name, logits, batch)
        exits = {tap: weight for tap, weight in weights.items() if tap != self.num_layers}
        if not exits:
            return last
        entropies = [_entropy_after(model, hidden[tap], batch) for tap in exits]
        early = torch.stack([weight * one for weight, one in zip(exits.values(), entropies, strict=True)]).sum(0)
        sums, counts = early.detach().sum() / sum(exits.values()), last.measures[f"{name}.text"][1, 0]
        measures = {**last.measures, f"{name}.exits": torch.stack((sums, counts))[:, None]}
        return Term(weights[self.num_layers] * last.rows + early, measures)

    def _highest(self, step: int) -> float:
        """The chance of the last layer."""
        rise = math.exp(step / max(self.num_steps - 1, 1) * math.log(2)) - 1
        return self.section.dropout * (rise if self.section.ramp else 1.0)


def _all(layer: int, step: int, recipe: LayerSkip) -> bool:
    return True


def _rotational(layer: int, step: int, recipe: LayerSkip) -> bool:
    return layer % recipe.section.every == step % recipe.section.every


def _gradual(layer: int, step: int, recipe: LayerSkip) -> bool:
    return layer >= recipe.num_layers - 1 - 2 * recipe.num_layers * step // recipe.num_steps


# Whether a layer before the last has a loss at a step.
CURRICULA: Mapping[str, Callable[[int, int, LayerSkip], bool]] = {
    "none": _all,
    "rotational": _rotational,
    "gradual": _gradual,
}


def _entropy_after(model: DecoderLM, hidden: Tensor, batch: TrainBatch) -> Tensor:
    """Of each row [B], where the target's own norm and head read ``hidden`` [B, T, H]; again in the backward pass."""
    found = checkpoint(_on_exit, model, hidden, batch, use_reentrant=False, preserve_rng_state=False)
    assert isinstance(found, Tensor)
    return found


def _on_exit(model: DecoderLM, hidden: Tensor, batch: TrainBatch) -> Tensor:
    return on_text("exit", model.compute_logits(hidden), batch).rows
