"""The instruction sets of a benchmark: as the command line names them, and as libraries of this process are limited.

Loads no torch before it has to: its libraries read their limits at their first use.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from paceline.kernels.cpu.compile import KernelError
from paceline.kernels.cpu.instruction_set import available_sets, check_set, instruction_set, load_kernel

if TYPE_CHECKING:
    from paceline.api import Loaded

OPTION: Final = "--isa"
ATEN: Final = "ATEN_CPU_CAPABILITY"
# What torch computes with: its own loops, oneDNN (products of bfloat16) and MKL (products of float32). Programs that a
# peer starts inherit it.
LIMITS: Final[Mapping[str, Mapping[str, str]]] = {
    "baseline": {ATEN: "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "avx2": {ATEN: "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "avx512": {ATEN: "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
    "avx512bf16": {ATEN: "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "MKL_ENABLE_INSTRUCTIONS": "AVX512_E3"},
}


def read_sets(text: str | None, *, backend: str = "auto", device: str | None = None) -> list[str]:
    """Sets such as "avx2,avx512bf16"; none for None.

    Raises ValueError, naming the option, for one that cannot run here, and beside what runs on no set.
    """
    if text is None:
        return []
    if backend == "hf":
        raise ValueError(
            f"{OPTION} {text} with --backend hf: transformers' code has no instruction sets; leave out one of them"
        )
    if device not in (None, "cpu"):
        raise ValueError(f"{OPTION} {text} with --device {device}: instruction sets are the CPU's; give --device cpu")
    names = dict.fromkeys(part.strip() for part in text.split(","))
    try:
        return [check_set(name, OPTION) for name in names]
    except KernelError as error:
        raise ValueError(f"{OPTION} {text}: there is no CPU kernel here ({error}); leave it out") from error


def limit_process(isas: Sequence[str]) -> dict[str, str]:
    """Limit torch in this process, and what it starts, to the one set of ``isas``; the variables that do.

    Must be called before torch is used. Raises ValueError where it was, where a variable has another value, and for
    several sets.
    """
    if not isas:
        return {}
    if len(isas) > 1:
        raise ValueError(f"{OPTION} {','.join(isas)} with --peers: peers run on one set at a time; give one")
    (isa,) = isas
    limits = LIMITS.get(isa)
    if limits is None:
        if isa == available_sets()[0]:
            return {}
        raise ValueError(f"{OPTION} {isa} with --peers: peers are limited on x86-64 alone; leave out one of them")
    for name, value in limits.items():
        if os.environ.get(name, value) != value:
            raise ValueError(
                f"{OPTION} {isa} with --peers: {name} is {os.environ[name]}, and {isa} needs {value}; unset it"
            )
    added = [name for name in limits if name not in os.environ]
    os.environ.update(limits)
    from torch.backends.cpu import get_cpu_capability

    found = get_cpu_capability()
    if found != limits[ATEN].upper():
        for name in added:
            del os.environ[name]
        raise ValueError(
            f"{OPTION} {isa} with --peers: torch runs on {found} already, as it was used before; "
            "run paceline bench in a process of its own"
        )
    return dict(limits)


@contextmanager
def within(isa: str | None) -> Iterator[None]:
    """Models that are made within, and operations of their steps, take the kernel of ``isa``; None is the default."""
    if isa is None:
        yield
        return
    with instruction_set(isa):
        yield


def check_kernel(isa: str) -> None:
    """Build the kernel of ``isa`` if there is none yet. Raises ValueError where that fails."""
    try:
        load_kernel(isa)
    except KernelError as error:
        raise ValueError(f"{OPTION} {isa}: {error}; leave it out") from error


def check_runs(loaded: "Loaded", isa: str) -> None:
    """Raise ValueError for a model that runs without the CPU kernel, and so on no set."""
    from paceline.api.loading import runnable
    from paceline.models.cpu.decoder import CpuDecoder

    if not isinstance(runnable(loaded), CpuDecoder):
        raise ValueError(
            f"{OPTION} {isa}: {loaded.name} on {loaded.lm.device} does not run by the CPU kernel, which alone has "
            "instruction sets; leave it out, or give a native model and --device cpu"
        )
