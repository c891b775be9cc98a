"""Compiles the CPU kernel: one library per instruction set, from the same sources.

Only the standard library is imported, by absolute names: the wheel's build hook (hatch_build.py) loads this file alone.
"""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
# No contraction: a compiler that fuses a product with a sum in one tile and not in another breaks batch invariance.
# The sources fuse by multiply_add (isa/vectors.h) instead.
FLAGS = (
    *("-std=c++17", "-O3", "-fno-math-errno", "-ffp-contract=off"),
    *("-fPIC", "-fvisibility=hidden", "-pthread", "-w"),
)
TIMEOUT = 300  # seconds
FEATURES = "features"  # the library that detects the processor's features


class KernelError(RuntimeError):
    """The kernel cannot be built or loaded on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """A set that the kernel is compiled for, and the processor features that it needs."""

    name: str
    architecture: str
    flags: tuple[str, ...] = ()
    features: frozenset[str] = frozenset()
    slow_on: str | None = None  # the vendor on whose processors the next set is faster


def _x86(name: str, *features: str, slow_on: str | None = None) -> InstructionSet:
    flags = ("-march=x86-64", *(f"-m{feature}" for feature in features))
    return InstructionSet(name, "x86_64", flags, frozenset(features), slow_on)


AVX2 = ("avx2", "fma", "f16c")
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")
ARM_BF16 = ("bf16", "dotprod", "i8mm")
# From the fastest to the slowest of each architecture. The last of an architecture runs on every processor of it.
# Intel's processors start a product of bfloat16 pairs every second cycle, and two products of floats in every one.
INSTRUCTION_SETS = (
    _x86("avx512bf16", *AVX512, "avx512bf16", "avx512vbmi", "avx512vnni", slow_on="intel"),
    _x86("avx512", *AVX512),
    _x86("avx2", *AVX2),
    _x86("baseline"),
    InstructionSet("neonbf16", "aarch64", ("-march=armv8.2-a+bf16+dotprod+i8mm",), frozenset(ARM_BF16)),
    InstructionSet("neon", "aarch64", ("-march=armv8-a",)),
    InstructionSet("baseline", ""),
)


def sets_of(architecture: str) -> tuple[InstructionSet, ...]:
    """The sets of ``architecture``, fastest first; any other architecture than x86-64 and ARM has ``baseline``."""
    return tuple(one for one in INSTRUCTION_SETS if one.architecture == architecture) or INSTRUCTION_SETS[-1:]


def this_architecture() -> str:
    """The architecture of this process: x86_64, aarch64, or the platform's name of another."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def library_name(name: str) -> str:
    """The file name of a library in a wheel."""
    return f"libpaceline-cpu-{name}.so"


def find_compiler() -> str:
    """$CXX, or the first C++ compiler on the path. Raises KernelError if there is none."""
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else ("c++", "g++", "clang++"):
        found = shutil.which(name)
        if found:
            return found
    raise KernelError(f"no C++ compiler: {wanted or 'c++, g++, clang++'} not found; install one, or set CXX")


def knows_flags(compiler: str, isa: InstructionSet) -> bool:
    """Whether ``compiler`` can compile for ``isa``: an older one does not know every flag."""
    command = [compiler, *isa.flags, "-fsyntax-only", "-x", "c++", "-"]
    return subprocess.run(command, input="", capture_output=True, text=True, timeout=TIMEOUT).returncode == 0


def kernel_units() -> list[Path]:
    """The files that the kernel is compiled from."""
    return sorted((SOURCES / "units").glob("*.cpp"))


def compile_kernel(
    compiler: str, isa: InstructionSet, library: Path, folder: Path, *, compiled: Callable[[], None] | None = None
) -> None:
    """Compile the kernel for ``isa`` to ``library``, its units in parallel. Raises KernelError.

    Objects are left in ``folder``. ``compiled`` is called after each unit, from several threads.
    """
    compile_units(compiler, kernel_units(), isa.flags, library, folder, compiled=compiled)


def compile_features(compiler: str, library: Path, folder: Path) -> None:
    """Compile what detects the processor's features, without flags of any set. Raises KernelError."""
    compile_units(compiler, [SOURCES / "isa" / "features.cpp"], sets_of(this_architecture())[-1].flags, library, folder)


def compile_units(
    compiler: str,
    units: Iterable[Path],
    flags: Iterable[str],
    library: Path,
    folder: Path,
    *,
    compiled: Callable[[], None] | None = None,
) -> None:
    """Compile ``units`` with ``flags`` and link them to ``library``. The environment's CXXFLAGS are not used."""
    flags = tuple(flags)
    objects = {unit: folder / f"{unit.stem}.o" for unit in units}

    def compile_unit(unit: Path) -> None:
        _run([compiler, *FLAGS, *flags, "-I", str(SOURCES), "-c", "-o", str(objects[unit]), str(unit)])
        if compiled is not None:
            compiled()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_unit, objects))
    if sys.platform == "darwin":
        exports = ["-Wl,-exported_symbol,_paceline_*"]
    else:  # templates of the standard library are not shared with other libraries of the process either
        exports = [f"-Wl,--version-script={SOURCES / 'exports.map'}"]
    _run([compiler, "-shared", "-pthread", *exports, "-o", str(library), *map(str, objects.values())])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    if done.returncode:
        error = done.stderr.strip()[-2000:] or f"exit code {done.returncode}"
        raise KernelError(f"{command[0]} could not build the CPU kernel: {error}")
