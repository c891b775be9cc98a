"""Finds the CPU kernel's libraries: in the installed wheel, in the cache, or built at first use by a C++ compiler."""

import hashlib
import logging
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from paceline.core import files
from paceline.kernels.cpu import compile as compiling
from paceline.kernels.cpu.compile import (
    FEATURES,
    SOURCES,
    TIMEOUT,
    InstructionSet,
    KernelError,
    compile_features,
    compile_kernel,
    find_compiler,
    kernel_units,
    knows_flags,
    library_name,
)

logger = logging.getLogger("paceline")

LOCK = "lock"  # of the cache: processes that start together build a library once
PACKAGED = Path(__file__).parent / "lib"  # of a wheel with compiled libraries


class UnknownFlagsError(KernelError):
    """The compiler does not know an instruction set's flags."""


def cache_folder() -> Path:
    """The directory of cached libraries."""
    return files.cache_folder("kernels")


def kernel_library(isa: InstructionSet) -> Path:
    """The library of ``isa``, built now if it is neither packaged nor cached. Raises KernelError.

    The cache is ``kernels`` in $PACELINE_CACHE, by default $XDG_CACHE_HOME/paceline or ~/.cache/paceline. A library's
    name is its set and a hash of the sources, the compiler and its flags, so a change of any of them builds a new one.
    """
    library, compiler = _place(isa)
    if compiler is not None:

        def compile_to(made: Path, folder: Path) -> None:
            from paceline.kernels.cpu.progress import build_progress

            logger.warning("building the CPU kernel for %s, once, as %s (20 to 30 seconds)", isa.name, library)
            with build_progress(isa.name, len(kernel_units())) as compiled:
                compile_kernel(compiler, isa, made, folder, compiled=compiled)

        _build(library, compile_to)
    return library


def check_buildable(isa: InstructionSet) -> None:
    """Check that the library of ``isa`` exists or can be built, without building it. Raises KernelError."""
    _place(isa)


def features_library() -> Path:
    """The library that detects the processor's features, likewise. Raises KernelError."""
    packaged = PACKAGED / library_name(FEATURES)
    if packaged.is_file():
        return packaged
    compiler = find_compiler()
    library = _cached(FEATURES, compiler, ())
    if not library.is_file():
        _build(library, lambda made, folder: compile_features(compiler, made, folder))
    return library


def _place(isa: InstructionSet) -> tuple[Path, str | None]:
    """Where the library of ``isa`` is, or is to be built by the compiler given beside. Raises KernelError."""
    packaged = PACKAGED / library_name(isa.name)
    if packaged.is_file():
        return packaged, None
    compiler = find_compiler()
    library = _cached(isa.name, compiler, isa.flags)
    if library.is_file():
        return library, None
    if not knows_flags(compiler, isa):
        raise UnknownFlagsError(f"{compiler} does not know {' '.join(isa.flags)}")
    return library, compiler


def _build(library: Path, compile_to: Callable[[Path, Path], None]) -> None:
    """Compile to ``library``, atomically, or wait for the process that does. Raises KernelError."""
    try:
        library.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(library.parent / LOCK):
            if library.is_file():
                return
            with tempfile.TemporaryDirectory(dir=library.parent) as folder:
                made = Path(folder) / library.name
                compile_to(made, Path(folder))
                os.replace(made, library)
    except NotImplementedError as error:  # file systems without locks
        raise KernelError(
            f"{library.parent} cannot be locked ({error}); set PACELINE_CACHE to a local folder"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelError(f"the CPU kernel could not be built in {library.parent}: {error}") from error


def _cached(name: str, compiler: str, flags: tuple[str, ...]) -> Path:
    """Where a library is cached, by a hash of everything that it depends on."""
    digest = hashlib.sha256()
    for path in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        digest.update(path.name.encode() + path.read_bytes())
    try:
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=TIMEOUT).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelError(f"{compiler} cannot be run: {error}") from error
    digest.update("\0".join((compiler, version, *compiling.FLAGS, *flags)).encode())
    return cache_folder() / f"cpu-{name}-{digest.hexdigest()[:16]}.so"
