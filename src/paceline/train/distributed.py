"""One process, several with the same weights, or several with a share of them each. Knows nothing of what is trained.

Several are started by ``torchrun``; they speak gloo between processors and nccl between CUDA devices.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import ClassVar, TypeVar, cast, final

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from paceline.models.native.blocks import Block
from paceline.train.tasks import Task

STATE_FILE = "state.safetensors"
T = TypeVar("T")


class Strategy(ABC):
    """How processes share a run. Every method is called by all of them alike."""

    files: ClassVar[str]  # how it keeps tensors; another strategy of the same can go on with them
    sharded: ClassVar[bool] = False  # whether a process holds only a share of the weights

    def __init__(self, *, device: torch.device, rank: int = 0, world: int = 1) -> None:
        self.device, self.rank, self.world = device, rank, world

    @abstractmethod
    def wrap(self, task: Task) -> nn.Module:
        """``task`` as it is called in training."""

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        return values

    def gathered(self, numbers: list[int]) -> list[int]:
        """The numbers of all processes, sorted."""
        return sorted(numbers)

    def on_main(self, work: Callable[[], T]) -> T:
        """What ``work`` gives on the writing process, and on all of them what it raises."""
        return work()

    def one_by_one(self, work: Callable[[], T]) -> T:
        """What ``work`` gives here, done by the writing process before all others."""
        return work()

    def reducing(self, wrapped: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        """Around forward and backward of a part of a step; after the ``last`` one gradients are those of all."""
        return nullcontext()

    def whole(self, tensor: Tensor) -> Tensor:
        """A tensor of which each process may hold a share."""
        return tensor

    def write(self, tensors: Mapping[str, Tensor], folder: Path) -> None:
        """Into ``folder``, which exists."""
        self.on_main(lambda: _write(tensors, folder / STATE_FILE))

    def read(self, tensors: Mapping[str, Tensor], folder: Path) -> None:
        """Into the very ``tensors``. Raises ValueError if others were written."""
        found = load_file(folder / STATE_FILE)
        if found.keys() != tensors.keys():
            missing, extra = sorted(tensors.keys() - found.keys()), sorted(found.keys() - tensors.keys())
            raise ValueError(f"{folder} is of another run: it lacks {missing[:3]} and has {extra[:3]}")
        for name, tensor in tensors.items():
            tensor.copy_(found[name])

    def close(self) -> None:  # noqa: B027 - nothing to do for one process
        """Part from the others."""


@final
class Single(Strategy):
    """One process."""

    files = "safetensors"

    def wrap(self, task: Task) -> nn.Module:
        """The task itself."""
        return task


class Several(Strategy):
    """Processes of ``torchrun``."""

    def total(self, values: Tensor) -> Tensor:
        """All-reduced."""
        summed = values.to(self.device).clone()
        dist.all_reduce(summed)
        return summed

    def gathered(self, numbers: list[int]) -> list[int]:
        """All-gathered."""
        found: list[list[int]] = [[] for _ in range(self.world)]
        dist.all_gather_object(found, numbers)
        return sorted(number for one in found for number in one)

    def on_main(self, work: Callable[[], T]) -> T:
        """Result or error, handed to all."""
        told: list[object] = [None, None]
        if self.main:
            try:
                told[0] = work()
            except Exception as error:  # whatever it is, the others must not wait for ever
                told[1] = error
        dist.broadcast_object_list(told, src=0)
        if isinstance(told[1], Exception):
            raise told[1]
        return cast("T", told[0])

    def one_by_one(self, work: Callable[[], T]) -> T:
        """The others wait for the first, and learn of its error."""
        found: list[T] = []
        self.on_main(lambda: found.append(work()))
        return found[0] if found else work()

    def close(self) -> None:
        """Wait for all, then leave the group."""
        dist.barrier()
        dist.destroy_process_group()


@final
class Replicated(Several):
    """Distributed data parallel: all weights everywhere, gradients averaged."""

    files = "safetensors"

    def wrap(self, task: Task) -> nn.Module:
        """In DistributedDataParallel."""
        devices = None if self.device.type == "cpu" else [self.device]
        return DistributedDataParallel(task, device_ids=devices, gradient_as_bucket_view=True)

    def one_by_one(self, work: Callable[[], T]) -> T:
        """What ``work`` gives here, done by the writing process before all others."""
        return work()

    def reducing(self, wrapped: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        """Gradients travel once per step."""
        assert isinstance(wrapped, DistributedDataParallel)
        return nullcontext() if last else wrapped.no_sync()


@final
class Sharded(Several):
    """FSDP2: every process holds a share of each weight, and all of a block only while it runs."""

    files = "dcp"
    sharded = True

    def wrap(self, task: Task) -> nn.Module:
        """Block by block, then what is left; what wants no gradient stays whole."""
        mesh = init_device_mesh(self.device.type, (self.world,))
        others = {parameter for parameter in task.parameters() if not parameter.requires_grad}
        for module in list(task.modules()):
            if isinstance(module, Block) and not others.issuperset(module.parameters()):
                fully_shard(module, mesh=mesh, ignored_params=others)
        fully_shard(task, mesh=mesh, ignored_params=others)
        return task

    def whole(self, tensor: Tensor) -> Tensor:
        """Gathered."""
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def write(self, tensors: Mapping[str, Tensor], folder: Path) -> None:
        """As a distributed checkpoint: every process its share."""
        save(dict(tensors), checkpoint_id=folder)

    def read(self, tensors: Mapping[str, Tensor], folder: Path) -> None:
        """Whatever number of processes wrote it."""
        load(dict(tensors), checkpoint_id=folder)


STRATEGIES: Mapping[str, type[Strategy]] = {"single": Single, "ddp": Replicated, "fsdp2": Sharded}


def open_strategy(name: str, *, device: str | None) -> Strategy:
    """The strategy ``name``; ``device`` None takes the accelerator if there is one.

    Raises ValueError where the processes that were started do not fit it.
    """
    chosen = STRATEGIES[name]
    world, here = int(os.environ.get("WORLD_SIZE", "1")), torch.device(device or _accelerator())
    if not issubclass(chosen, Several):
        if world > 1:
            raise ValueError(
                f"distributed={name} under torchrun with {world} processes: set distributed to ddp or fsdp2"
            )
        return chosen(device=here)
    if "WORLD_SIZE" not in os.environ:
        raise ValueError(
            f"distributed={name} in a single process: start it by `torchrun --nproc_per_node 2 -m paceline train ...`"
        )
    if here.type != "cpu":
        here = torch.device(here.type, int(os.environ.get("LOCAL_RANK", "0")))
        torch.accelerator.set_device_index(here.index)
    own = dist.get_default_backend_for_device(here)
    dist.init_process_group("gloo" if here.type == "cpu" else f"cpu:gloo,{here.type}:{own}")
    return chosen(device=here, rank=dist.get_rank(), world=dist.get_world_size())


def _accelerator() -> torch.device:
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def _write(tensors: Mapping[str, Tensor], path: Path) -> None:
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
