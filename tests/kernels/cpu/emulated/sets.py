"""The instruction sets to test, how each runs here, and their libraries."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from paceline.kernels.cpu.build import cache_folder, kernel_library
from paceline.kernels.cpu.compile import INSTRUCTION_SETS, InstructionSet, this_architecture
from paceline.kernels.cpu.instruction_set import available_sets

REPLAY = Path(__file__).parent / "replay.cpp"
COMPILERS = {"x86_64": "g++", "aarch64": "aarch64-linux-gnu-g++"}
ARM_ROOT = "/usr/aarch64-linux-gnu"  # libraries of the cross compiler
# Emulated processors that have a set and nothing beyond; qemu emulates no AVX-512, and AVX2 since 7.2.
PROCESSORS = {"baseline": "Nehalem", "avx2": "Haswell", "neon": "cortex-a57", "neonbf16": "max"}
TIMEOUT = 600  # seconds


@dataclass(frozen=True)
class Target:
    """An instruction set on an architecture."""

    isa: InstructionSet

    @property
    def native(self) -> bool:
        """Whether this machine's processor has the set."""
        return self.isa.architecture == this_architecture() and self.isa.name in available_sets()

    def emulator(self, cpu: str | None = None) -> list[str] | None:
        """The command that runs a program on an emulated processor; None where there is none."""
        architecture = self.isa.architecture
        qemu, cpu = shutil.which(f"qemu-{architecture}"), cpu or PROCESSORS.get(self.isa.name)
        if qemu is None or cpu is None or _version(qemu) < (7, 2):
            return None
        return [qemu, "-cpu", cpu, *(["-L", ARM_ROOT] if architecture != this_architecture() == "x86_64" else [])]

    def missing(self) -> str | None:
        """Why the set's library cannot be run here, natively or emulated; None where it can."""
        compiler = COMPILERS[self.isa.architecture]
        if shutil.which(compiler) is None:
            return f"{compiler} is not installed"
        if self.native or self.emulator():
            return None
        if self.isa.name not in PROCESSORS:
            return f"the processor lacks {self.isa.name}, and qemu does not emulate it"
        return f"qemu-{self.isa.architecture} is not installed, or older than 7.2"


SETS = {one.name: Target(one) for one in reversed(INSTRUCTION_SETS) if one.architecture in COMPILERS}


def library_of(target: Target) -> Path:
    """The kernel's library of a set, as the package builds it."""
    foreign = target.isa.architecture != this_architecture()
    compiler = {"CXX": COMPILERS[target.isa.architecture]} if foreign else {}  # else the package's own choice
    with _lock(target.isa.name), patch.dict(os.environ, compiler):
        return kernel_library(target.isa)


def replay_of(target: Target) -> Path:
    """The program that replays recordings on the set's architecture, built at first use."""
    compiler = COMPILERS[target.isa.architecture]
    digest = hashlib.sha256(compiler.encode() + REPLAY.read_bytes()).hexdigest()[:16]
    made = cache_folder() / f"replay-{target.isa.architecture}-{digest}"
    with _lock(made.name):
        if not made.is_file():
            partial = made.with_suffix(".part")
            subprocess.run([compiler, "-std=c++17", "-O1", "-o", partial, REPLAY, "-ldl"], check=True, timeout=TIMEOUT)
            os.replace(partial, made)
    return made


def replay(target: Target, *arguments: str, emulator: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run the program with the set's library on the processor, or by ``emulator``."""
    command = [*emulator, str(replay_of(target)), str(library_of(target)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)


@contextmanager
def _lock(name: str) -> Iterator[None]:
    """One process at a time builds ``name``."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _version(qemu: str) -> tuple[int, ...]:
    words = subprocess.run([qemu, "--version"], capture_output=True, text=True, check=True).stdout.split()
    return tuple(int(part) for part in words[words.index("version") + 1].split(".")[:2])
