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
