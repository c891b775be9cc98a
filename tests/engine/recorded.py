"""Recordings of steps without a device that can make them: operations of torch, noted as they are called.

As on a device, nothing that is called while recording has happened afterwards: what it wrote into is as it was, and
what it made holds rubbish until the recording is replayed.
"""

from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ATEN = torch.ops.aten
READ_BY_THE_HOST = {
    ATEN.item.default,
    ATEN._local_scalar_dense.default,
    ATEN.is_nonzero.default,
    ATEN.nonzero.default,
    ATEN.masked_select.default,
}


class Recorded:
    """Operations with the very tensors that they were called with."""

    def __init__(self, graphs, calls):
        self.graphs, self.calls = graphs, calls

    def replay(self):
        self.graphs.num_replayed += 1
        for func, args, options, made in self.calls:
            result = tensors(func(*args, **options))
            for place, tensor in made:
                tensor.copy_(result[place])


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def storage(tensor):
    return tensor.untyped_storage().data_ptr()


class Recorder(TorchDispatchMode):
    """Notes every operation; keeps what the storages held that one writes into."""

    def __init__(self, graphs):
        super().__init__()
        self.graphs, self.calls, self.kept, self.made = graphs, None, {}, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        options = kwargs or {}
        self.graphs.num_operations += 1
        if func in READ_BY_THE_HOST:
            raise RuntimeError("operation not permitted when stream is capturing")
        if self.calls is None:
            raise RuntimeError(f"{func} is called between two pieces")
        if self.graphs.fails_at == self.graphs.num_operations:
            raise RuntimeError("the device has had enough")
        given = tensors((args, options))
        writes = any(one.alias_info is not None and one.alias_info.is_write for one in func._schema.arguments)
        if writes:
            for one, value in zip(func._schema.arguments, args, strict=False):
                if one.alias_info is not None and one.alias_info.is_write:
                    for tensor in tensors(value):
                        self._keep(tensor)
            assert not any(one.is_out for one in func._schema.arguments), f"{func}: written by keyword"
        result = func(*args, **options)
        known = {storage(tensor) for tensor in given}
        made = [(place, tensor) for place, tensor in enumerate(tensors(result)) if storage(tensor) not in known]
        self.made.update({storage(tensor): tensor for _, tensor in made})
        if writes or made:
            self.calls.append((func, args, options, made))
        return result

    def _keep(self, tensor):
        if storage(tensor) not in self.kept and storage(tensor) not in self.made:
            self.kept[storage(tensor)] = (tensor.untyped_storage(), tensor.untyped_storage().clone())

    def undo(self):
        for whole, was in self.kept.values():
            whole.copy_(was)
        for tensor in self.made.values():
            tensor.untyped_storage().fill_(0x5B)


class RecordedGraphs:
    """Graphs (engine/graphs) of what is called on the CPU; ``fails_at`` (None) is the operation that cannot be."""

    def __init__(self, *, fails_at=None):
        self.fails_at = fails_at
        self.num_operations = self.num_replayed = self.num_aside = 0
        self.recorder = None
        self.begun = []  # the number of operations before each recording

    @contextmanager
    def aside(self):
        assert self.recorder is None
        self.num_aside += 1
        yield

    @contextmanager
    def recording(self):
        self.recorder = Recorder(self)
        self.begun.append(self.num_operations)
        try:
            with self.recorder:
                yield
        finally:
            self.recorder.undo()
            self.recorder = None

    def begin(self):
        assert self.recorder.calls is None, "one piece at a time"
        self.recorder.calls = []

    def end(self):
        calls, self.recorder.calls = self.recorder.calls, None
        assert calls, "a piece of nothing"
        return Recorded(self, calls)
