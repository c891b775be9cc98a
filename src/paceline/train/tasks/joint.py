"""Training in two stages (Medusa-2, 2401.10774): draft heads alone, then the target together with them.

Steps count from 0.
"""

from typing import final

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import nn

from paceline.models.native.decoder import DecoderLM
from paceline.train.data.config import Section

TRUNK = "trunk"  # the target's name in a task


class JointSection(Section):
    """The section ``target.joint``: when and how the target is trained with its heads."""

    start: PositiveInt  # steps of the first stage, in which the target stays as it is
    learning_rate: PositiveFloat  # of the target; the heads have the optimiser's
    warmup: NonNegativeInt = 100  # steps of the second stage in which the target's rate and the heads' weight rise
    layers: PositiveInt | None = None  # only so many last layers, and the final norm; None: the whole target


@final
class Joint:
    """The stages of one run. ``rate`` is the optimiser's. Raises ValueError for more layers than ``target`` has."""

    def __init__(self, section: JointSection, *, rate: float, target: DecoderLM) -> None:
        self._section, self._relative_rate = section, section.learning_rate / rate
        if section.layers is not None and section.layers > target.num_layers:
            raise ValueError(
                f"target.joint.layers={section.layers}: the target has {target.num_layers}; give at most as many, or "
                "leave it out to train the whole target"
            )

    def has_begun(self, step: int) -> bool:
        """Whether ``step`` trains the target."""
        return step >= self._section.start

    def ramp(self, step: int) -> float:
        """0 in the first stage, then rising to 1 over the warm-up."""
        done, warmup = step - self._section.start + 1, self._section.warmup
        return max(0.0, min(1.0, done / warmup)) if warmup else float(done > 0)

    def head_weight(self, step: int) -> float:
        """The factor of the heads' losses: 1 while they are alone."""
        return self.ramp(step) if self.has_begun(step) else 1.0

    def target_rate(self, step: int) -> float:
        """The target's learning rate relative to the optimiser's."""
        return self._relative_rate * self.ramp(step)

    def choose_trained(self, target: DecoderLM) -> None:
        """Let those parameters of ``target`` have gradients that are to be trained."""
        layers = self._section.layers
        if layers is None:
            target.requires_grad_(True)
            return
        target.requires_grad_(False)
        parts: list[nn.Module] = [*target.blocks[-layers:], target.norm]
        for part in parts:
            part.requires_grad_(True)
