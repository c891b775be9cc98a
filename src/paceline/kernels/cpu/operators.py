"""Registers the kernel's entries as torch operators of the namespace ``paceline``, each with a fake implementation.

Eager code calls an entry directly: a ctypes call costs a third of an operator's dispatch, and pointers to tensors that
keep their addresses (core/columns) are resolved once. Under torch.compile the call is traced as the operator, which
takes every tensor that the entry reads or changes.
"""

import ctypes
import inspect
import typing
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from typing import Any, TypeVar, cast, final

import torch
from torch import Tensor

from paceline.core.columns import Columns
from paceline.kernels.cpu.instruction_set import load_kernel

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound=ctypes.Structure)

LIBRARY = torch.library.Library("paceline", "DEF")


def kernel_op(
    fake: Callable[..., Any], *, mutates: Sequence[str] = (), columns: Mapping[str, Sequence[str]] | None = None
) -> Callable[[F], F]:
    """Register the decorated function as the operator of its name; it takes positional arguments alone.

    A parameter of Columns, whose names ``columns`` gives, or of a NamedTuple of tensors becomes one argument per
    tensor, ``parameter_name``. ``mutates`` names the operator's arguments that it changes. ``fake`` takes the
    function's parameters and returns tensors of the shapes and dtypes of its result.
    """

    def register(function: F) -> F:
        signature = inspect.signature(function)
        sizes: list[int] = []  # tensors of a grouped parameter, 0 for one that is passed as it is
        kinds: list[Any] = []
        flat: list[inspect.Parameter] = []
        for name, parameter in signature.parameters.items():
            kind, optional = _kind(parameter.annotation)
            grouped = (columns or {}).get(name) or typing.get_type_hints(kind) if _is_group(kind) else {}
            sizes.append(len(grouped))
            kinds.append(kind)
            for field in grouped:
                of_field = Tensor if kind is Columns else typing.get_type_hints(kind)[field]
                flat.append(_parameter(f"{name}_{field}", Tensor | None if optional else of_field))
            if not grouped:
                flat.append(_parameter(name, parameter.annotation))

        def grouped_arguments(arguments: Sequence[Any]) -> list[Any]:
            found, rest = [], list(arguments)
            for size, kind in zip(sizes, kinds, strict=True):
                group, rest = rest[: size or 1], rest[size or 1 :]
                found.append(group[0] if not size else None if _is_missing(group) else kind(*group))
            return found

        def implementation(*arguments: Any) -> Any:
            return function(*grouped_arguments(arguments))

        def fake_implementation(*arguments: Any) -> Any:
            return fake(*grouped_arguments(arguments))

        name = function.__name__
        implementation.__signature__ = signature.replace(parameters=flat)  # type: ignore[attr-defined]
        LIBRARY.define(name + torch.library.infer_schema(implementation, mutates_args=mutates))
        LIBRARY.impl(name, implementation, "CPU")
        torch.library.register_fake(f"paceline::{name}", fake_implementation, lib=LIBRARY)
        operator = getattr(torch.ops.paceline, name).default

        def traced(*arguments: Any) -> Any:
            flat: list[Any] = []
            for argument, size in zip(arguments, sizes, strict=True):
                if not size:
                    flat.append(argument)
                elif argument is None:
                    flat.extend([None] * size)
                else:
                    flat.extend(argument.tensors if isinstance(argument, Columns) else argument)
            return operator(*flat)

        @wraps(function)
        def call(*arguments: Any) -> Any:
            return traced(*arguments) if torch.compiler.is_compiling() else function(*arguments)

        return cast(F, call)

    return register


@cache
def entry(isa: str, name: str, dtype: torch.dtype | None = None) -> Callable[..., None]:
    """The function ``name`` of the kernel of ``isa``, of tensors of ``dtype`` where there is one per precision."""
    suffix = "" if dtype is None else f"_{str(dtype).removeprefix('torch.')}"
    function = getattr(load_kernel(isa), f"paceline_{name}{suffix}")
    function.restype = None
    return function


def pointers_of(columns: Columns, make: Callable[..., S]) -> S:
    """The struct that ``make`` makes of pointers to ``columns``, made once."""
    if columns.pointers is None:
        columns.pointers = make(*columns.tensors)
    return columns.pointers  # type: ignore[return-value]


def row_major(tensor: Tensor) -> Tensor:
    """``tensor`` with a last axis of stride 1."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] <= 1 else tensor.contiguous()


@final
class Workspace:
    """Memory of forwards and fused drafting by the kernel of ``isa``.

    Calls with different workspaces do not wait for each other.
    """

    def __init__(self, isa: str) -> None:
        self.isa, kernel = isa, load_kernel(isa)
        kernel.paceline_new_workspace.restype = ctypes.c_void_p
        self.address: int = kernel.paceline_new_workspace()
        WORKSPACES[self.address] = self
        free = weakref.finalize(self, kernel.paceline_free_workspace, ctypes.c_void_p(self.address))
        free.atexit = False  # a thread may still be working in it

    @property
    def activation_bytes(self) -> int:
        """Memory of the activation buffers that are kept for the next call."""
        count = load_kernel(self.isa).paceline_activation_bytes
        count.restype = ctypes.c_int64
        return count(ctypes.c_void_p(self.address))

    def __deepcopy__(self, _: object) -> "Workspace":
        return Workspace(self.isa)


WORKSPACES: weakref.WeakValueDictionary[int, Workspace] = weakref.WeakValueDictionary()  # by their addresses


def _kind(annotation: Any) -> tuple[Any, bool]:
    """The type of a parameter, and whether it may be None."""
    members = typing.get_args(annotation)
    if type(None) in members:
        return members[0], True
    return annotation, False


def _is_group(kind: Any) -> bool:
    return kind is Columns or (inspect.isclass(kind) and issubclass(kind, tuple) and hasattr(kind, "_fields"))


def _is_missing(group: Sequence[Any]) -> bool:
    return all(entry is None for entry in group)


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)
