"""This machine's processor: its name, and how many threads it runs. Loads no torch."""

import os
import platform
from pathlib import Path


def processor_name() -> str:
    """The processor's name; platform.processor() is empty on most Linux systems."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def check_threads(count: int, shown: str) -> None:
    """Raise ValueError, which begins with ``shown``, for a ``count`` of threads below 1 and above that of the cores.

    torch and its OpenMP end the process where the system has no room for so many threads, and more threads than cores
    only wait for each other.
    """
    cores = os.cpu_count() or 1
    if not 1 <= count <= cores:
        raise ValueError(f"{shown}: give at least 1 and at most {cores}, the number of this machine's cores")


def has_matrix_tiles() -> bool:
    """Whether torch multiplies matrices of bfloat16 in tiles of this processor (Intel AMX).

    For hundreds of rows at once that is several times the speed of vector instructions, with which our kernels do it.
    """
    import torch  # here, because the command line names processors before it needs torch

    supported = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return supported is not None and bool(supported())
