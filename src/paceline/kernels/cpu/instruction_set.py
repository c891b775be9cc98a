"""Chooses the instruction set of the CPU kernel and loads its library.

A library is loaded only after the processor was seen to have its set. Libraries of several sets may be loaded in one
process: models, operations of a step and workspaces keep the one that they were made with.
"""

import ctypes
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from paceline.kernels.cpu.build import UnknownFlagsError, check_buildable, features_library, kernel_library
from paceline.kernels.cpu.compile import InstructionSet, KernelError, sets_of, this_architecture

logger = logging.getLogger("paceline")

VARIABLE = "PACELINE_ISA"
MAX_NAMES = 512  # bytes

_selected: ContextVar[str | None] = ContextVar("instruction_set", default=None)


class InstructionSetError(ValueError):
    """An instruction set was asked for that does not exist or that this processor lacks."""


def load_kernel(isa: str | None = None) -> ctypes.CDLL:
    """The library of ``isa``, by default of ``current_set()``; built now if it is neither packaged nor cached.

    Raises KernelError if there is no compiler or it fails, InstructionSetError for a set that cannot run here.
    """
    return _load(current_set() if isa is None else check_set(isa))


def current_set() -> str:
    """The set of what is made now: of ``instruction_set``, of $PACELINE_ISA, or the fastest that the processor has."""
    return _selected.get() or _default(os.environ.get(VARIABLE) or None)


@contextmanager
def instruction_set(isa: str) -> Iterator[None]:
    """Models and engines that are made within use the CPU kernel of ``isa``. Raises InstructionSetError."""
    token = _selected.set(check_set(isa))
    try:
        yield
    finally:
        _selected.reset(token)


def check_set(isa: str, source: str = "instruction set") -> str:
    """``isa``, which must exist and run on this processor; ``source`` is where it was given.

    Raises InstructionSetError, or KernelError if the processor's features cannot be detected.
    """
    check_name(isa, source)
    if isa not in available_sets():
        missing = ", ".join(sorted(_find(isa).features - processor_features()))
        raise InstructionSetError(
            f"{source} {isa}: this processor, or its operating system, lacks {missing}: "
            f"{_way_out(source, ', '.join(available_sets()))}"
        )
    return isa


def check_name(isa: str, source: str = "instruction set") -> None:
    """Check that ``isa`` is a set of this architecture, without detecting anything. Raises InstructionSetError."""
    if any(one.name == isa for one in _known()):
        return
    names = ", ".join(one.name for one in _known())
    raise InstructionSetError(
        f"{source} {isa}: not an instruction set of {this_architecture()}: {_way_out(source, names)}"
    )


def check_environment() -> None:
    """Check $PACELINE_ISA before any work. Raises InstructionSetError."""
    given = os.environ.get(VARIABLE)
    if given:
        check_name(given, VARIABLE)
        try:
            check_set(given, VARIABLE)
        except KernelError:
            pass  # without a compiler nothing is loaded: models run eagerly, with a warning


def available_sets() -> tuple[str, ...]:
    """The sets that this processor runs, fastest first. Raises KernelError if its features cannot be detected."""
    has = processor_features()
    sets = [one for one in _known() if one.features <= has]
    for at, one in enumerate(sets[:-1]):
        if one.slow_on in has:
            sets[at : at + 2] = sets[at + 1], one
            break
    return tuple(one.name for one in sets)


@cache
def processor_features() -> frozenset[str]:
    """The processor's features that the operating system supports. Raises KernelError.

    Asked of the processor itself (CPUID and XCR0; on ARM of the operating system) and not read from a list of files:
    that also holds in containers, under emulation and with features masked by a virtual machine.
    """
    names = ctypes.create_string_buffer(MAX_NAMES)
    path = features_library()
    try:
        ctypes.CDLL(str(path)).paceline_cpu_features(names, ctypes.c_int64(MAX_NAMES))
    except OSError as error:
        raise KernelError(f"{path} cannot be loaded ({error}); remove it to have it built again") from error
    return frozenset(names.value.decode().split())


def describe_set() -> str | None:
    """The set that models on the CPU run by; None where there is no kernel and they run eagerly. Builds no kernel."""
    try:
        return current_set()
    except KernelError:
        return None


@cache
def _default(forced: str | None) -> str:
    """The set of $PACELINE_ISA, or the fastest that both the processor and the compiler know."""
    if forced is not None:
        return check_set(forced, VARIABLE)
    names = available_sets()
    for name in names:
        try:
            check_buildable(_find(name))
        except UnknownFlagsError as error:
            logger.warning("the CPU kernel runs without %s, which is slower: %s; a newer one does", name, error)
            continue
        if name == "baseline" and len(_known()) > 1:
            best = _known()[-2]
            missing = ", ".join(sorted(best.features - processor_features()))
            logger.warning(
                "the CPU kernel runs on the baseline of %s, slower than on %s: missing %s",
                this_architecture(),
                best.name,
                missing or "a compiler that knows its flags",
            )
        return name
    raise KernelError(f"the compiler knows none of the instruction sets {', '.join(names)}")


@cache
def _load(isa: str) -> ctypes.CDLL:
    path = kernel_library(_find(isa))
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelError(f"{path} cannot be loaded ({error}); remove it to have it built again") from error


def _find(isa: str) -> InstructionSet:
    return next(one for one in _known() if one.name == isa)


def _known() -> tuple[InstructionSet, ...]:
    return sets_of(this_architecture())


def _way_out(source: str, names: str) -> str:
    return f"{'unset it, or ' if source == VARIABLE else ''}give one of {names}"
