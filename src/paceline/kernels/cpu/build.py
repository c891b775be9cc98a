"""Builds the CPU kernel library with the system's C++ compiler at first use and caches it."""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

logger = logging.getLogger("paceline")

SOURCES = Path(__file__).parent / "src"
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-pthread", "-shared", "-fPIC", "-w")
ATTEMPTS = (("-march=native",), ())  # the second if the compiler does not support the CPU
TIMEOUT = 300  # seconds


class KernelError(RuntimeError):
    """The kernel cannot be built on this machine; the message says why."""


@cache
def load_kernel() -> ctypes.CDLL:
    """The compiled kernel, from the cache or built now. Raises KernelError if there is no compiler or it fails.

    The cache is ``kernels`` in $PACELINE_CACHE, by default $XDG_CACHE_HOME/paceline or ~/.cache/paceline. A library's
    name is a hash of the sources, the compiler, its flags and the CPU, so a change of any of them builds a new one.
    """
    compiler = find_compiler()
    library = cache_folder() / f"cpu-{_identity(compiler)}.so"
    if not library.is_file():
        logger.info("building the CPU kernel with %s, once; it is cached as %s", compiler, library)
        build(compiler, library)
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise KernelError(f"{library} cannot be loaded ({error}); remove it to have it built again") from error


def find_compiler() -> str:
    """$CXX, or the first C++ compiler on the path. Raises KernelError if there is none."""
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else ("c++", "g++", "clang++"):
        found = shutil.which(name)
        if found:
            return found
    raise KernelError(f"no C++ compiler: {wanted or 'c++, g++, clang++'} not found; install one, or set CXX")


def cache_folder() -> Path:
    """The directory of cached libraries."""
    configured = os.environ.get("PACELINE_CACHE")
    if configured:
        return Path(configured) / "kernels"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline" / "kernels"


def build(compiler: str, library: Path) -> None:
    """Compile the sources to ``library``, atomically. Raises KernelError."""
    try:
        library.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            made = Path(folder) / library.name
            _compile(compiler, made)
            os.replace(made, library)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelError(f"the CPU kernel could not be built in {library.parent}: {error}") from error


def _compile(compiler: str, library: Path) -> None:
    """Compile with the first of ATTEMPTS that works. Raises KernelError with the first one's error output."""
    first_error = ""
    for more in ATTEMPTS:
        command = [compiler, *FLAGS, *more, "-I", str(SOURCES), "-o", str(library), str(SOURCES / "kernel.cpp")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        if done.returncode == 0:
            if first_error:
                logger.warning(
                    "the CPU kernel is built without CPU-specific instructions, which is slower: %s", first_error
                )
            return
        first_error = first_error or done.stderr.strip()[-2000:] or f"exit code {done.returncode}"
    raise KernelError(f"{compiler} could not build the CPU kernel: {first_error}")


def _identity(compiler: str) -> str:
    """A hash of everything that the library depends on."""
    digest = hashlib.sha256()
    for path in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        digest.update(path.name.encode() + path.read_bytes())
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=TIMEOUT).stdout
    digest.update("\0".join((compiler, version, *FLAGS, str(ATTEMPTS), platform.machine(), _processor())).encode())
    return digest.hexdigest()[:16]


def _processor() -> str:
    """The CPU's feature flags, or its name."""
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        return platform.processor()
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
