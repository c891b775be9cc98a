"""The instruction sets to test, how each runs here, and their libraries."""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.kernels.cpu.build import SOURCES, cache_folder

REPLAY = Path(__file__).parent / "replay.cpp"
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-pthread", "-shared", "-fPIC", "-w")
COMPILERS = {"x86_64": "g++", "aarch64": "aarch64-linux-gnu-g++"}
ARM_ROOT = "/usr/aarch64-linux-gnu"  # libraries of the cross compiler
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512cd")


@dataclass(frozen=True)
class Target:
    """An instruction set, and an emulated processor that has it and nothing beyond (None: qemu emulates none)."""

    name: str
    architecture: str
    flags: tuple[str, ...]
    features: tuple[str, ...]  # as in /proc/cpuinfo
    emulated: str | None

    @property
    def native(self) -> bool:
        """Whether this machine's processor has the set."""
        if platform.machine() != self.architecture:
            return False
        found = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
        return set(self.features) <= set(found)

    def emulator(self, cpu: str | None = None) -> list[str] | None:
        """The command that runs a program on an emulated processor; None where it cannot be run."""
        qemu, cpu = shutil.which(f"qemu-{self.architecture}"), cpu or self.emulated
        if qemu is None or cpu is None or (self.architecture == "x86_64" and _version(qemu) < (7, 2)):
            return None
        return [qemu, "-cpu", cpu, *(["-L", ARM_ROOT] if self.architecture == "aarch64" else [])]

    def missing(self) -> str | None:
        """Why the set's library cannot be run here, natively or emulated; None where it can."""
        if shutil.which(COMPILERS[self.architecture]) is None:
            return f"{COMPILERS[self.architecture]} is not installed"
        if self.native or self.emulator():
            return None
        if self.emulated is None:
            return f"the processor lacks {self.name}, and qemu does not emulate it"
        return f"qemu-{self.architecture} is not installed, or older than 7.2, which has no AVX2"


SETS = {
    one.name: one
    for one in (
        Target("baseline", "x86_64", (), (), "Nehalem"),
        Target("avx2", "x86_64", _AVX2, ("avx2", "fma", "f16c"), "Haswell"),
        Target("avx512", "x86_64", _AVX512, tuple(flag[2:] for flag in _AVX512), None),
        Target(
            "avx512bf16",
            "x86_64",
            (*_AVX512, "-mavx512bf16", "-mavx512vbmi", "-mavx512vnni"),
            ("avx512_bf16", "avx512vbmi", "avx512_vnni"),
            None,
        ),
        Target("neon", "aarch64", ("-march=armv8-a",), ("asimd",), "cortex-a57"),
        Target("neonbf16", "aarch64", ("-march=armv8.2-a+bf16+dotprod+i8mm",), ("bf16", "asimddp", "i8mm"), "max"),
    )
}


def library_of(one: Target) -> Path:
    """The kernel's library of a set, built at first use."""
    sources = sorted(path for path in SOURCES.rglob("*") if path.is_file())
    command = [*FLAGS, *one.flags, "-I", str(SOURCES), str(SOURCES / "kernel.cpp")]
    return _built(one.architecture, f"{one.name}.so", command, sources)


def replay_of(one: Target) -> Path:
    """The program that replays recordings on the set's architecture."""
    return _built(one.architecture, f"replay-{one.architecture}", ["-std=c++17", "-O1", str(REPLAY), "-ldl"], [REPLAY])


def replay(one: Target, *arguments: str, emulator: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run the program with the set's library on the processor, or by ``emulator``."""
    command = [*emulator, str(replay_of(one)), str(library_of(one)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def _built(architecture: str, name: str, arguments: list[str], sources: list[Path]) -> Path:
    """The cached result of compiling ``sources``, one process at a time."""
    compiler = COMPILERS[architecture]
    digest = hashlib.sha256("\0".join((compiler, *arguments)).encode())
    for path in sources:
        digest.update(path.read_bytes())
    made = cache_folder() / f"tested-{digest.hexdigest()[:16]}-{name}"
    made.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (made.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.is_file():
            partial = made.with_suffix(".part")
            subprocess.run([compiler, *arguments, "-o", str(partial)], check=True, timeout=600)
            os.replace(partial, made)
    return made


def _version(qemu: str) -> tuple[int, ...]:
    words = subprocess.run([qemu, "--version"], capture_output=True, text=True, check=True).stdout.split()
    return tuple(int(part) for part in words[words.index("version") + 1].split(".")[:2])
