"""LayerSkip (2404.16710): trains a target so that its early layers predict its final output.

Layers count from 0 to L - 1, steps from 0 to T - 1. B rows, V vocabulary, H hidden size; tap l + 1 is the residual
stream after layer l.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, final

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from paceline.models.native.decoder import DecoderLM
from paceline.train.batches import TrainBatch
from paceline.train.data.config import Section
from paceline.train.tasks.positions import recomputed
from paceline.train.tasks.terms import LossTerm, next_token_term


class LayerSkipSection(Section):
    """The section ``target.layer_skip``: layer dropout, and the weights and schedule of early exits."""

    dropout: float = Field(default=0.1, ge=0, lt=1)  # probability that a row skips the last layer; the first never is
    ramp: bool = False  # probabilities grow from zero at the first step; meant for targets from scratch
    exit_scale: NonNegativeFloat = 0.2  # weight of early exits relative to the last layer; 0: they are not trained
    curriculum: Literal["none", "rotational", "gradual"] = "rotational"
    every: PositiveInt = 8  # rotational: each exit is trained in one of this many steps


@final
class LayerSkip:
    """The recipe for a target of ``num_layers`` layers over ``num_steps`` steps.

    *Layer dropout.* In step t a row skips layer l with probability dropout * (exp(l ln 2 / (L - 1)) - 1), which is 0
    at the first layer and ``dropout`` at the last; with ``ramp`` times exp(t ln 2 / (T - 1)) - 1.

    *Early exits.* The target's norm and LM head are applied after every layer, and the loss is the mean of all
    cross-entropies with the weights e(l) = exit_scale * (0 + 1 + ... + l), and L - 1 + exit_scale * (0 + 1 + ... +
    (L - 2)) for the last layer. So the exit after the first layer has no weight.

    *Curriculum.* Which exits a step trains, besides the last layer: all; "rotational", those whose l is congruent to t
    modulo ``every``; "gradual", from the deepest to the first, one more every T / (2 L) steps. Weights are normalised
    over the exits of the step.

    Raises ValueError for a target of a single layer.
    """

    def __init__(self, section: LayerSkipSection, *, num_layers: int, num_steps: int) -> None:
        if num_layers < 2:
            raise ValueError(
                f"target.layer_skip: the target has {num_layers} layer, and an early exit needs 2 at least; give it "
                "more layers, or leave layer_skip out"
            )
        self.section, self.num_layers, self.num_steps = section, num_layers, num_steps

    def skip_probs(self, step: int) -> Tensor:
        """Probability of skipping each layer: [L]."""
        depth = torch.arange(self.num_layers, dtype=torch.float64) / (self.num_layers - 1)
        return self._last_skip_prob(step) * (torch.exp(depth * math.log(2)) - 1)

    def skipped(self, step: int, generators: Sequence[torch.Generator]) -> Tensor | None:
        """Which layers each row skips, bool [B, L], drawn by its own generator; None where none can be skipped."""
        if self._last_skip_prob(step) == 0:
            return None
        uniforms = [torch.rand(self.num_layers, generator=one, dtype=torch.float64) for one in generators]
        return torch.stack(uniforms) < self.skip_probs(step)

    def weights(self, step: int) -> dict[int, float]:
        """Loss weight by tap, of those that have one; the weights sum to 1."""
        last, scale, trains = self.num_layers - 1, self.section.exit_scale, CURRICULA[self.section.curriculum]
        exits = [layer for layer in range(last) if trains(layer, step, self)]
        weights = {layer + 1: scale * layer * (layer + 1) / 2 for layer in exits}
        weights[last + 1] = last + scale * last * (last - 1) / 2
        total = sum(weights.values())
        return {tap: weight / total for tap, weight in weights.items() if weight > 0}

    def loss(
        self,
        name: str,
        model: DecoderLM,
        logits: Tensor,
        hidden: Mapping[int, Tensor],
        batch: TrainBatch,
        weights: Mapping[int, float],
    ) -> LossTerm:
        """Cross-entropy of ``logits`` [B, T, V] and of the exits, weighted by ``weights`` (by tap of ``hidden``).

        Logs the last layer's loss and the weighted mean of the exits'. The logits of one exit are in memory at a time.
        """
        last = next_token_term(name, logits, batch)
        exits = {tap: weight for tap, weight in weights.items() if tap != self.num_layers}
        if not exits:
            return last
        losses = [recomputed(_exit_loss, model, hidden[tap], batch) for tap in exits]
        early = torch.stack([weight * loss for weight, loss in zip(exits.values(), losses, strict=True)]).sum(0)
        sums, counts = early.detach().sum() / sum(exits.values()), last.metrics[f"{name}.text"][1, 0]
        metrics = {**last.metrics, f"{name}.exits": torch.stack((sums, counts))[:, None]}
        return LossTerm(weights[self.num_layers] * last.rows + early, metrics)

    def _last_skip_prob(self, step: int) -> float:
        ramp = math.exp(step / max(self.num_steps - 1, 1) * math.log(2)) - 1
        return self.section.dropout * (ramp if self.section.ramp else 1.0)


def _rotational(layer: int, step: int, recipe: LayerSkip) -> bool:
    return layer % recipe.section.every == step % recipe.section.every


def _gradual(layer: int, step: int, recipe: LayerSkip) -> bool:
    return layer >= recipe.num_layers - 1 - 2 * recipe.num_layers * step // recipe.num_steps


# Whether the exit after a layer is trained in a step.
CURRICULA: Mapping[str, Callable[[int, int, LayerSkip], bool]] = {
    "none": lambda layer, step, recipe: True,
    "rotational": _rotational,
    "gradual": _gradual,
}


def _exit_loss(model: DecoderLM, hidden: Tensor, batch: TrainBatch) -> Tensor:
    """The loss of each row [B] with the target's norm and LM head on ``hidden`` [B, T, H]."""
    return next_token_term("exit", model.compute_logits(hidden), batch).rows
