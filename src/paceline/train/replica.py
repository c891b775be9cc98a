"""Weights as they will be served: whole, in the target's precision, averaged where that is wanted. Trains nothing."""

import copy
from typing import final

import torch
from torch import Tensor

from paceline.train.distributed import Strategy
from paceline.train.tasks import Task


@final
class Averaged:
    """The exponential mean of weights: after each step ``decay`` of it stays."""

    def __init__(self, *, task: Task, decay: float) -> None:
        self.decay = decay
        self.tensors = {name: parameter.detach().clone() for name, parameter in task.trained().items()}

    @torch.no_grad()
    def update(self, task: Task) -> None:
        """After a step."""
        for name, parameter in task.trained().items():
            self.tensors[name].lerp_(parameter.detach(), 1 - self.decay)


@final
class Replica:
    """A second copy of what is trained, for weights that do not lie whole in the first one. The target is shared."""

    def __init__(self, *, task: Task) -> None:
        self.task = copy.deepcopy(task, _shared(task))
        for parameter in self.task.trained().values():
            parameter.data = parameter.data.to(task.served_dtype or parameter.dtype)

    @staticmethod
    def is_needed(task: Task, *, apart: bool) -> bool:
        """Whether ``task`` itself cannot be served: its weights lie ``apart``, or in another precision."""
        dtype = task.served_dtype
        return apart or any(parameter.dtype != (dtype or parameter.dtype) for parameter in task.trained().values())

    @torch.no_grad()
    def take(self, tensors: dict[str, Tensor], strategy: Strategy) -> Task:
        """The copy, with these weights. Called by all processes."""
        for name, parameter in self.task.trained().items():
            parameter.copy_(strategy.whole(tensors[name]))
        return self.task


def _shared(task: Task) -> dict[int, object]:
    """What a copy of ``task`` has in common with it, as copy.deepcopy wants it."""
    if task.frozen is None:
        return {}
    modules = list(task.frozen.modules())
    return {id(one): one for one in [*modules, *task.frozen.parameters(), *task.frozen.buffers()]}
