"""The name of this machine's processor."""

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
