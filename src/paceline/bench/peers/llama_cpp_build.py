"""What a build of llama.cpp was compiled for, from CMake's cache. Runs nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

AVX2: Final = ("GGML_AVX2", "GGML_FMA", "GGML_F16C")
AVX512: Final = (*AVX2, "GGML_AVX512")
# What a build for each instruction set has switched on. SSE 4.2 and AVX, which it can switch too, are left as they are.
NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "baseline": (),
    "avx2": AVX2,
    "avx512": AVX512,
    "avx512bf16": (*AVX512, "GGML_AVX512_BF16", "GGML_AVX512_VBMI", "GGML_AVX512_VNNI"),
}
# The processor that it was built on, and every processor: one of them is no set at all.
ANY: Final = ("GGML_NATIVE", "GGML_CPU_ALL_VARIANTS")
MORE: Final = ("GGML_AVX", "GGML_BMI2", "GGML_AVX_VNNI", "GGML_AMX_TILE", "GGML_AMX_INT8", "GGML_AMX_BF16")


def wrong_build(folder: Path, isa: str) -> str | None:
    """Why the build in ``folder`` is not for ``isa``, and the command that makes one; None if it is."""
    if isa not in NEEDED:
        return f"how it is built for {isa} alone is not known here; leave out --isa"
    path = folder / "build" / "CMakeCache.txt"
    if not path.is_file():
        return f"no {path}, which says what it was built for; build it again: {_command(isa, {})}"
    options = _options(path)
    refused = (*ANY, *(name for name in NEEDED["avx512bf16"] if name not in NEEDED[isa]))
    refused = (*refused, *(MORE if isa == "baseline" else MORE[2:]))
    wrong = {name: False for name in refused if options.get(name)}
    wrong |= {name: True for name in NEEDED[isa] if not options.get(name)}
    if not wrong:
        return None
    found = ", ".join(f"{name}={'OFF' if wanted else 'ON'}" for name, wanted in wrong.items())
    return f"{folder / 'build'} is not built for {isa} alone ({found}); build it again: {_command(isa, wrong)}"


def _command(isa: str, wrong: Mapping[str, bool]) -> str:
    wanted = {"GGML_NATIVE": False, **dict.fromkeys(NEEDED[isa], True), **wrong}
    return " ".join(["cmake -B build", *(f"-D{name}={'ON' if on else 'OFF'}" for name, on in wanted.items())])


def _options(path: Path) -> dict[str, bool]:
    """The switches in a CMake cache, of lines such as GGML_AVX2:BOOL=ON."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    entries = (line.partition("=") for line in lines if line.startswith("GGML_"))
    return {name.partition(":")[0]: value.upper() in ("ON", "1", "TRUE", "YES", "Y") for name, _, value in entries}
