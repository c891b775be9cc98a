"""Copies of the trained weights: their moving average, and a whole copy in the dtype in which they are served."""

import copy
from typing import final

import torch
from torch import Tensor

from paceline.train.loop.distributed import Strategy
from paceline.train.tasks.base import Task


@final
class WeightAverage:
    """The exponential moving average of the weights."""

    def __init__(self, *, task: Task, decay: float) -> None:
        self.decay = decay
        self.tensors = {name: parameter.detach().clone() for name, parameter in task.trained().items()}

    @torch.no_grad()
    def update(self, task: Task) -> None:
        """After a step."""
        for name, parameter in task.trained().items():
            self.tensors[name].lerp_(parameter.detach(), 1 - self.decay)


@final
class ServedCopy:
    """A second copy of the trained modules, for weights that are sharded, averaged or trained in another dtype.

    The frozen target is shared with the first one.
    """

    def __init__(self, *, task: Task) -> None:
        self.task = copy.deepcopy(task, _shared_modules(task))
        for parameter in self.task.trained().values():
            parameter.data = parameter.data.to(task.served_dtype or parameter.dtype)

    @staticmethod
    def is_needed(task: Task, *, separate: bool) -> bool:
        """Whether ``task`` cannot be served itself: its weights are ``separate``, or of another dtype."""
        dtype = task.served_dtype
        return separate or any(parameter.dtype != (dtype or parameter.dtype) for parameter in task.trained().values())

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], strategy: Strategy) -> Task:
        """The copy with these weights. A collective call."""
        for name, parameter in self.task.trained().items():
            parameter.copy_(strategy.full_tensor(tensors[name]))
        return self.task


def _shared_modules(task: Task) -> dict[int, object]:
    """The memo of copy.deepcopy: what the copy has in common with ``task``."""
    if task.frozen is None:
        return {}
    modules = list(task.frozen.modules())
    return {id(one): one for one in [*modules, *task.frozen.parameters(), *task.frozen.buffers()]}
