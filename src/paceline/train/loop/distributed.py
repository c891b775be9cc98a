"""How processes share a run: one process, replicated weights (DDP) or sharded weights (FSDP2).

Several processes are started by ``torchrun``; they use gloo on CPUs and nccl on CUDA devices.
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
from paceline.train.tasks.base import Task

STATE_FILE = "state.safetensors"
T = TypeVar("T")


class Strategy(ABC):
    """How processes share a run. Every method is a collective call."""

    files: ClassVar[str]  # checkpoint format; a strategy of the same format can resume from it
    sharded: ClassVar[bool] = False  # whether a process holds only a shard of the weights

    def __init__(self, *, device: torch.device, rank: int = 0, world: int = 1) -> None:
        self.device, self.rank, self.world = device, rank, world

    @abstractmethod
    def wrap(self, task: Task) -> nn.Module:
        """The module that training calls."""

    @property
    def main(self) -> bool:
        """Whether this process writes files."""
        return self.rank == 0

    def all_reduce(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        return values

    def all_gather(self, numbers: list[int]) -> list[int]:
        """The numbers of all processes, sorted."""
        return sorted(numbers)

    def on_main(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the main process; its result or exception is given to all."""
        return work()

    def main_first(self, work: Callable[[], T]) -> T:
        """Run ``work`` on every process, on the main process before all others."""
        return work()

    def gradient_sync(self, wrapped: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        """Context of a micro-batch's forward and backward pass; gradients are averaged after the ``last`` one."""
        return nullcontext()

    def full_tensor(self, tensor: Tensor) -> Tensor:
        """The whole of a tensor that may be sharded."""
        return tensor

    def write(self, tensors: Mapping[str, Tensor], folder: Path) -> None:
        """Write into ``folder``, which exists."""
        self.on_main(lambda: _write(tensors, folder / STATE_FILE))

    def read(self, tensors: Mapping[str, Tensor], folder: Path) -> None:
        """Read into ``tensors`` in place. Raises ValueError if the names differ."""
        saved = load_file(folder / STATE_FILE)
        if saved.keys() != tensors.keys():
            missing, extra = sorted(tensors.keys() - saved.keys()), sorted(saved.keys() - tensors.keys())
            raise ValueError(f"{folder} is of another run: it lacks {missing[:3]} and has {extra[:3]}")
        for name, tensor in tensors.items():
            tensor.copy_(saved[name])

    def close(self) -> None:  # noqa: B027 - nothing to do for one process
        """Leave the process group."""


@final
class Single(Strategy):
    """One process."""

    files = "safetensors"

    def wrap(self, task: Task) -> nn.Module:
        """The task itself."""
        return task


class MultiProcess(Strategy):
    """Processes of ``torchrun``."""

    def all_reduce(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        summed = values.to(self.device).clone()
        dist.all_reduce(summed)
        return summed

    def all_gather(self, numbers: list[int]) -> list[int]:
        """The numbers of all processes, sorted."""
        gathered: list[list[int]] = [[] for _ in range(self.world)]
        dist.all_gather_object(gathered, numbers)
        return sorted(number for one in gathered for number in one)

    def on_main(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the main process and broadcast its result or exception."""
        result: list[object] = [None, None]
        if self.main:
            try:
                result[0] = work()
            except Exception as error:  # of any kind: the others would wait for ever
                result[1] = error
        dist.broadcast_object_list(result, src=0)
        if isinstance(result[1], Exception):
            raise result[1]
        return cast("T", result[0])

    def main_first(self, work: Callable[[], T]) -> T:
        """The other processes wait for the main one, and raise its exception."""
        results: list[T] = []
        self.on_main(lambda: results.append(work()))
        return results[0] if results else work()

    def close(self) -> None:
        """Wait for all processes, then leave the group."""
        dist.barrier()
        dist.destroy_process_group()


@final
class DataParallel(MultiProcess):
    """Distributed data parallel: weights replicated, gradients averaged."""

    files = "safetensors"

    def wrap(self, task: Task) -> nn.Module:
        """In DistributedDataParallel."""
        devices = None if self.device.type == "cpu" else [self.device]
        return DistributedDataParallel(
            task, device_ids=devices, gradient_as_bucket_view=True, find_unused_parameters=task.in_stages
        )

    def gradient_sync(self, wrapped: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        """Gradients are all-reduced once per step."""
        assert isinstance(wrapped, DistributedDataParallel)
        return nullcontext() if last else wrapped.no_sync()


@final
class Sharded(MultiProcess):
    """FSDP2: every process holds a shard of each weight, and the whole of a block only while it runs."""

    files = "dcp"
    sharded = True

    def wrap(self, task: Task) -> nn.Module:
        """Sharded block by block, then the rest; parameters without a gradient stay whole."""
        mesh = init_device_mesh(self.device.type, (self.world,))
        frozen = {parameter for parameter in task.parameters() if not parameter.requires_grad}
        for module in list(task.modules()):
            if isinstance(module, Block) and not frozen.issuperset(module.parameters()):
                fully_shard(module, mesh=mesh, ignored_params=frozen)
        fully_shard(task, mesh=mesh, ignored_params=frozen)
        return task

    def full_tensor(self, tensor: Tensor) -> Tensor:
        """Gathered from all processes."""
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def write(self, tensors: Mapping[str, Tensor], folder: Path) -> None:
        """As a distributed checkpoint: every process writes its shards."""
        save(dict(tensors), checkpoint_id=folder)

    def read(self, tensors: Mapping[str, Tensor], folder: Path) -> None:
        """A checkpoint written by any number of processes."""
        load(dict(tensors), checkpoint_id=folder)


STRATEGIES: Mapping[str, type[Strategy]] = {"single": Single, "ddp": DataParallel, "fsdp2": Sharded}


def open_strategy(name: str, *, device: str | None) -> Strategy:
    """The strategy ``name``; ``device`` None takes the accelerator if there is one.

    Raises ValueError if it does not fit the processes that were started.
    """
    chosen = STRATEGIES[name]
    world, local = int(os.environ.get("WORLD_SIZE", "1")), torch.device(device or _accelerator())
    if not issubclass(chosen, MultiProcess):
        if world > 1:
            raise ValueError(
                f"distributed={name} under torchrun with {world} processes: set distributed to ddp or fsdp2"
            )
        return chosen(device=local)
    if "WORLD_SIZE" not in os.environ:
        raise ValueError(
            f"distributed={name} in a single process: start it by `torchrun --nproc_per_node 2 -m paceline train ...`"
        )
    if local.type != "cpu":
        local = torch.device(local.type, int(os.environ.get("LOCAL_RANK", "0")))
        torch.accelerator.set_device_index(local.index)
    backend = dist.get_default_backend_for_device(local)
    dist.init_process_group("gloo" if local.type == "cpu" else f"cpu:gloo,{local.type}:{backend}")
    return chosen(device=local, rank=dist.get_rank(), world=dist.get_world_size())


def _accelerator() -> torch.device:
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def _write(tensors: Mapping[str, Tensor], path: Path) -> None:
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
