"""Builds the kernel with the machine's own compiler at its first use, and keeps it. Knows nothing of models."""

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
ATTEMPTS = (("-march=native",), ())  # the second where a compiler does not know the machine
TIMEOUT = 300  # seconds


class KernelError(RuntimeError):
    """The kernel cannot be built here, with the reason."""


@cache
def load_kernel() -> ctypes.CDLL:
    """The compiled kernel, from the cache or built now. Raises KernelError where there is no compiler or it fails.

    The cache is ``kernels`` in $PACELINE_CACHE, by default $XDG_CACHE_HOME/paceline or ~/.cache/paceline. A library's
    name is a hash of the sources, the compiler and the processor, so that none of them can change unseen.
    """
    compiler = find_compiler()
    library = cache_folder() / f"cpu-{_identity(compiler)}.so"
    if not library.is_file():
        logger.info("building the CPU kernel with %s, once; it is kept as %s", compiler, library)
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
    """Where libraries are kept."""
    chosen = os.environ.get("PACELINE_CACHE")
    if chosen:
        return Path(chosen) / "kernels"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline" / "kernels"


def build(compiler: str, library: Path) -> None:
    """Compile the sources to ``library``, which appears whole or not at all. Raises KernelError."""
    try:
        library.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            made = Path(folder) / library.name
            _compile(compiler, made)
            os.replace(made, library)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelError(f"the CPU kernel could not be built in {library.parent}: {error}") from error


def _compile(compiler: str, library: Path) -> None:
    """Compile with the first of ATTEMPTS that works. Raises KernelError with what the compiler said to the first."""
    complaint = ""
    for more in ATTEMPTS:
        command = [compiler, *FLAGS, *more, "-I", str(SOURCES), "-o", str(library), str(SOURCES / "kernel.cpp")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        if done.returncode == 0:
            if complaint:
                logger.warning("the CPU kernel is built for any processor, which is slower: %s", complaint)
            return
        complaint = complaint or done.stderr.strip()[-2000:] or f"exit code {done.returncode}"
    raise KernelError(f"{compiler} could not build the CPU kernel: {complaint}")


def _identity(compiler: str) -> str:
    """A hash of everything that the library depends on."""
    seen = hashlib.sha256()
    for path in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        seen.update(path.name.encode() + path.read_bytes())
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=TIMEOUT).stdout
    seen.update("\0".join((compiler, version, *FLAGS, str(ATTEMPTS), platform.machine(), _processor())).encode())
    return seen.hexdigest()[:16]


def _processor() -> str:
    """What tells processors of other abilities apart."""
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        return platform.processor()
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
