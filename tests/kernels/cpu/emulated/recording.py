"""Records calls of the kernel's C ABI, with all memory that they point to, for replay.cpp to run on another set.

The format is a list of events of little-endian int64 fields. Memory is in regions; pointers between them are stored as
(region, offset). A tag precedes its fields:

- REGION region, size, element kind
- SET region, bytes: what Python changed since the last call
- POINTER region, offset, target region, target offset
- CALL name, and per argument its kind, value and offset
- CLOSE region, offset, size, bytes: the kernel's result here; integers must be equal, floats close
- EQUAL two of (region, offset), size: bitwise equal results of the set that replays
- CASE name
"""

import ctypes
import struct
import subprocess
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.kernels.cpu import operators
from paceline.kernels.cpu.instruction_set import load_kernel

Event = IntEnum("Event", ["REGION", "SET", "POINTER", "CALL", "CLOSE", "EQUAL", "CASE"], start=1)
Argument = IntEnum("Argument", ["INTEGER", "ADDRESS", "WORKSPACE"], start=0)
KINDS = {torch.float64: 1, torch.float32: 2, torch.bfloat16: 3, torch.float16: 4}  # of elements; 0: integers
STRUCTS = -1  # kind of a region of the caller's structs, which are not results
Panels = Mapping[tuple[str, int], int]  # what the replaying set's functions of panels return, by name and argument
BLOCK = 128  # bytes of a result that are recorded together
NOT_CALLS = ("workspace", "activation_bytes", "panel_")  # in names of entries that are not recorded


class Region:
    """Memory from ``address`` on, kept alive by ``owner``.

    ``seen`` is what the replaying side has there, ``pointers`` the addresses in a struct by their offsets.
    """

    def __init__(self, number: int, address: int, size: int, kind: int, owner: object) -> None:
        self.number, self.address, self.size, self.kind, self.owner = number, address, size, kind, owner
        self.seen: bytes | None = None
        self.pointers: dict[int, int] = {}

    def content(self) -> bytes:
        return ctypes.string_at(self.address, self.size)


class Recorder:
    """The events of one recording."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.shadow = False  # record calls without running them
        self._regions: dict[int, Region] = {}
        self._addresses: list[int] = []
        self._workspaces: dict[int, int] = {}
        self._numbers = count()

    def case(self, name: str) -> None:
        """The name of what follows, for messages."""
        self._event(Event.CASE, name)

    def equal(self, one: Tensor, other: Tensor) -> None:
        """Both must be bitwise equal, here and where the recording is replayed."""
        assert one.shape == other.shape and one.dtype == other.dtype
        assert self.shadow or torch.equal(one, other)
        for a, b in zip(_rows(one), _rows(other), strict=True):
            places = [number for row in (a, b) for number in self._place(row.data_ptr())]
            self._event(Event.EQUAL, *places, a.numel() * a.itemsize)

    def close(self, recorded: Tensor, expected: Tensor) -> None:
        """``recorded``, written by calls that were not run here, must be close to ``expected``."""
        assert recorded.shape == expected.shape and recorded.dtype == expected.dtype and recorded.is_contiguous()
        region, offset = self._place(recorded.data_ptr())
        data = ctypes.string_at(expected.contiguous().data_ptr(), recorded.numel() * recorded.itemsize)
        self._event(Event.CLOSE, region, offset, data)

    def save(self, path: Path) -> None:
        path.write_bytes(b"".join(self.events))

    def add_tensor(self, tensor: Tensor, address: int) -> None:
        """Know the memory of ``tensor``."""
        storage = tensor.untyped_storage()
        if address:
            self._add(
                address - tensor.storage_offset() * tensor.itemsize,
                storage.nbytes(),
                KINDS.get(tensor.dtype, 0),
                storage,
            )

    def call(self, name: str, function: Any, arguments: tuple[Any, ...]) -> None:
        """Run and record a call of the entry ``name``."""
        reached: dict[int, Region] = {}
        described = [self._argument(name, at, value, reached) for at, value in enumerate(arguments)]
        self._update(reached)
        self._event(Event.CALL, name, len(described), *(number for one in described for number in one))
        if self.shadow:
            return
        function(*arguments)
        for region in reached.values():
            content = region.content()
            if region.kind != STRUCTS and content != region.seen:
                for start, end in _changed(region.seen or b"", content):
                    self._event(Event.CLOSE, region.number, start, content[start:end])
                region.seen = content

    def _argument(self, name: str, at: int, value: Any, reached: dict[int, Region]) -> tuple[int, int, int]:
        if at == 0 and name.startswith(("paceline_forward_", "paceline_draft_fused_")):
            return Argument.WORKSPACE, self._workspaces.setdefault(value.value, len(self._workspaces)), 0
        if hasattr(value, "_obj"):  # byref
            value = value._obj
        if isinstance(value, ctypes.Structure | ctypes.Array):
            self._add_structs(value)
            address = ctypes.addressof(value)
            self._reach(address, type(value), reached)
            return Argument.ADDRESS, *self._place(address)
        if isinstance(value, ctypes.c_void_p):
            if value.value is None:
                return Argument.INTEGER, 0, 0
            self._reach(value.value, None, reached)
            return Argument.ADDRESS, *self._place(value.value)
        return Argument.INTEGER, int(getattr(value, "value", value) or 0), 0

    def _reach(self, address: int, kind: Any, reached: dict[int, Region]) -> None:
        """Add the region at ``address`` and, by the fields of ``kind``, those that it points to."""
        region = self._at(address)
        if region.number in reached:
            return
        reached[region.number] = region
        if kind is None:
            return
        region.pointers.clear()
        for offset, target in _pointers(kind * (region.size // ctypes.sizeof(kind)), 0):
            value = ctypes.c_void_p.from_address(region.address + offset).value
            if value:
                self._reach(value, target, reached)
                region.pointers[offset] = value

    def _update(self, reached: dict[int, Region]) -> None:
        """Emit what changed since the last call."""
        for region in reached.values():
            if region.seen is None:
                self._event(Event.REGION, region.number, region.size, max(region.kind, 0))
        for region in reached.values():
            content = region.content()
            if content != region.seen:
                self._event(Event.SET, region.number, content)
                region.seen = content
                for offset, value in region.pointers.items():
                    self._event(Event.POINTER, region.number, offset, *self._place(value))

    def _add_structs(self, value: Any) -> None:
        """Know the memory of a struct or array and of those that it keeps alive."""
        self._add(ctypes.addressof(value), ctypes.sizeof(value), STRUCTS, value)
        waiting: list[Any] = [value._objects]
        while waiting:
            one = waiting.pop()
            if isinstance(one, dict):
                waiting.extend(one.values())
            elif isinstance(one, list | tuple):
                waiting.extend(one)
            elif isinstance(one, ctypes.Structure | ctypes.Array):
                self._add(ctypes.addressof(one), ctypes.sizeof(one), STRUCTS, one)
                waiting.append(one._objects)
            elif hasattr(one, "_objects"):
                waiting.append(one._objects)

    def _add(self, address: int, size: int, kind: int, owner: object) -> None:
        known = self._regions.get(address)
        if known is None or known.size < size:
            if known is None:
                self._addresses.insert(bisect_right(self._addresses, address), address)
            self._regions[address] = Region(next(self._numbers), address, size, kind, owner)

    def _at(self, address: int) -> Region:
        index = bisect_right(self._addresses, address) - 1
        region = self._regions[self._addresses[index]] if index >= 0 else None
        if region is None or address > region.address + region.size:
            raise LookupError(f"a pointer to {address:#x}, which no tensor or struct of the recording has")
        return region

    def _place(self, address: int) -> tuple[int, int]:
        region = self._at(address)
        return region.number, address - region.address

    def _event(self, event: Event, *fields: int | str | bytes) -> None:
        parts = [struct.pack("<q", event)]
        for field in fields:
            if isinstance(field, int):
                parts.append(struct.pack("<q", field))
            else:
                data = field.encode() if isinstance(field, str) else field
                parts.append(struct.pack("<q", len(data)) + data)
        self.events.append(b"".join(parts))


def _pointers(kind: Any, start: int) -> Iterator[tuple[int, Any]]:
    """Offsets of the pointers in ``kind``, each with what it points to (None: plain data)."""
    if kind is ctypes.c_void_p:
        yield start, None
    elif hasattr(kind, "contents"):
        yield (
            start,
            kind._type_ if issubclass(kind._type_, ctypes.Structure) or kind._type_ is ctypes.c_void_p else None,
        )
    elif issubclass(kind, ctypes.Structure):
        for name, of_field in kind._fields_:
            yield from _pointers(of_field, start + getattr(kind, name).offset)
    elif issubclass(kind, ctypes.Array):
        for index in range(kind._length_):
            yield from _pointers(kind._type_, start + index * ctypes.sizeof(kind._type_))


def _changed(before: bytes, after: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of the blocks that differ, neighbours together."""
    start = None
    for at in range(0, len(after) + BLOCK, BLOCK):
        differs = before[at : at + BLOCK] != after[at : at + BLOCK]
        if differs and start is None:
            start = at
        elif not differs and start is not None:
            yield start, min(at, len(after))
            start = None


def _rows(tensor: Tensor) -> list[Tensor]:
    """Contiguous pieces of ``tensor``."""
    if tensor.is_contiguous():
        return [tensor]
    return [row for part in tensor for row in _rows(part)]


def exported(library: str) -> list[str]:
    """The names of the C ABI in ``library``, of any architecture."""
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    names = [line.split()[-1] for line in listed.stdout.splitlines()]
    return [name for name in names if name.startswith("paceline_")]


@contextmanager
def shadow(recorder: Recorder, panels: Panels) -> Iterator[None]:
    """Record calls without running them, on weights packed in ``panels``."""
    kernel = load_kernel()
    names = {name for name, _ in panels}
    for name in names:
        kernel.__dict__[name] = lambda argument=0, name=name: panels[name, getattr(argument, "value", argument)]
    recorder.shadow = True
    try:
        yield
    finally:
        recorder.shadow = False
        for name in names:
            del kernel.__dict__[name]


@contextmanager
def recording() -> Iterator[Recorder]:
    """Record every call of the kernel. Models and batches must be made inside, so that their pointers are seen."""
    kernel, recorder, data_ptr = load_kernel(), Recorder(), torch.Tensor.data_ptr

    def recorded_data_ptr(tensor: Tensor) -> int:
        address = data_ptr(tensor)
        recorder.add_tensor(tensor, address)
        return address

    def recorded(name: str) -> Any:
        function = getattr(kernel, name)
        function.restype = None
        return lambda *arguments: recorder.call(name, function, arguments)

    names = [name for name in exported(kernel._name) if not any(part in name for part in NOT_CALLS)]
    functions = {name: type("Entry", (), {"__call__": staticmethod(recorded(name))})() for name in names}
    kernel.__dict__.update(functions)
    operators.entry.cache_clear()
    torch.Tensor.data_ptr = recorded_data_ptr  # type: ignore[method-assign]
    try:
        yield recorder
    finally:
        torch.Tensor.data_ptr = data_ptr  # type: ignore[method-assign]
        for name in names:
            del kernel.__dict__[name]
        operators.entry.cache_clear()
