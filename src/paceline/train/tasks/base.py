"""The interface of a training task: a module whose forward returns the loss of a batch and its metrics.

B rows, K depths.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from paceline.core.noise import split_seed
from paceline.models.native.decoder import DecoderLM
from paceline.train.batches import TrainBatch
from paceline.train.tasks.terms import LossTerm

TARGET_STREAM = 1 << 40  # split off the seed like a step, and larger than any step
SOURCE_STREAM = TARGET_STREAM + 1


class TaskOutput(NamedTuple):
    """Sums over the rows of a batch. The trainer divides them by counts over all processes."""

    loss: Tensor  # [] over all learned tokens
    rows: Tensor  # [B] the loss of each row, without a gradient
    metrics: dict[str, Tensor]  # name -> [2, K]: sums and counts, one column per depth


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRandomness:
    """Random numbers as a function of seed, step and row, on any number of processes."""

    seed: int
    step: int
    first_row: int  # index of this batch's first row in the whole batch

    def generator(self, row: int) -> torch.Generator:
        """The generator of ``row`` of this batch."""
        return torch.Generator().manual_seed(split_seed(split_seed(self.seed, self.step), self.first_row + row))

    def for_target(self) -> "StepRandomness":
        """An independent stream for the same rows, used for the target; heads draw from this one."""
        return dataclasses.replace(self, seed=split_seed(self.seed, TARGET_STREAM))

    def for_sources(self) -> "StepRandomness":
        """A third one, for what an encoder reads."""
        return dataclasses.replace(self, seed=split_seed(self.seed, SOURCE_STREAM))

    def seed_device(self) -> None:
        """Seed the device's global generator, which dropout uses."""
        torch.manual_seed(split_seed(split_seed(self.seed + 1, self.step), self.first_row))


class Task(nn.Module, ABC):
    """What a run trains. Parameters without a gradient are neither saved nor sharded."""

    @abstractmethod
    def forward(self, batch: TrainBatch, randomness: StepRandomness) -> TaskOutput:
        """Loss and metrics of ``batch``, whose tensors are on the task's device."""

    @property
    @abstractmethod
    def frozen(self) -> DecoderLM | None:
        """The frozen target. It is not a submodule."""

    @property
    def served_dtype(self) -> torch.dtype | None:
        """The dtype in which the trained weights are served; None: that in which they are trained."""
        return None

    @property
    def in_stages(self) -> bool:
        """Whether some steps train only a part: the last weights are then written, for no measure compares stages."""
        return False

    def relative_rate(self, part: str, step: int) -> float:
        """The learning rate of the submodule ``part`` in ``step``, relative to the schedule's."""
        return 1.0

    def trained(self) -> dict[str, nn.Parameter]:
        """Trained parameters by name; shared ones appear once."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}


def sum_terms(terms: Sequence[LossTerm]) -> TaskOutput:
    """The output of a task whose loss is the sum of ``terms``."""
    rows = torch.stack([term.rows for term in terms]).sum(0)
    metrics = {name: value for term in terms for name, value in term.metrics.items()}
    return TaskOutput(rows.sum(), rows.detach(), metrics)
