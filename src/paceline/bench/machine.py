"""What the figures were taken on: a figure without its machine means nothing. Measures nothing itself."""

import hashlib
import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import torch

import paceline
from paceline.hardware.processor import processor_name
from paceline.kernels.cpu.instruction_set import describe_set


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Hardware, versions and threads of this process."""

    processor: str
    num_cores: int
    num_threads: int
    memory_gib: float
    accelerator: str | None
    instruction_set: str | None  # of the CPU kernel; None where there is none
    system: str
    python: str
    versions: dict[str, str]

    def __str__(self) -> str:
        packages = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        accelerator = "" if self.accelerator is None else f"; {self.accelerator}"
        kernel = "no CPU kernel" if self.instruction_set is None else f"CPU kernel for {self.instruction_set}"
        return (
            f"{self.processor}, {self.num_cores} cores, {self.num_threads} threads, "
            f"{self.memory_gib:.0f} GiB of memory{accelerator}; {kernel}; "
            f"{self.system}; Python {self.python}, {packages}"
        )

    def identity(self) -> dict[str, object]:
        """What must be equal for figures to belong together; the threads are those of a run, not of the machine."""
        return {name: value for name, value in asdict(self).items() if name != "num_threads"}


def describe() -> Machine:
    """The machine as it is now."""
    return Machine(
        processor=processor_name(),
        num_cores=os.cpu_count() or 0,
        num_threads=torch.get_num_threads(),
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        instruction_set=describe_set(),
        accelerator=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        system=platform.platform(terse=True),
        python=platform.python_version(),
        versions={name: _version(name) for name in ("paceline", "torch", "transformers")},
    )


def hash_source() -> str:
    """A hash of this package's own code: figures of different code do not belong together."""
    total, root = hashlib.sha256(), Path(paceline.__file__).parent
    for path in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".h", ".cpp")):
        total.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    return total.hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
