"""What is in a compiled library, as binutils show it."""

import re
import shutil
import subprocess

import pytest

needs_binutils = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("nm", "readelf", "objdump")), reason="binutils are not installed"
)
POINTER = 8
TOO_WIDE = {
    "baseline": r"%[yz]mm|\bv(mov|add|mul|fmadd|broadcast)\w* ",
    "avx2": r"%zmm|%k[1-7]\b|%[xy]mm(1[6-9]|2\d|3[01])",
}


def check_contents(library, isa):
    """Only the C ABI is exported, nothing runs at load, and there are no instructions beyond the set ``isa``."""
    exported = _show("nm", "-D", "--defined-only", library).split("\n")
    assert {line.split()[-1].partition("_")[0] for line in exported if line} == {"paceline"}
    if "libstdc++" in _show("readelf", "-d", library):  # elsewhere it is linked in, with its own initialisers
        sizes = re.findall(r"\.(?:init_array|ctors)\s+\S+\s+\w+\s+\w+\s+(\w+)", _show("readelf", "-SW", library))
        assert sum(int(size, 16) for size in sizes) <= POINTER  # the compiler's own frame_dummy
    if isa in TOO_WIDE:
        found = re.search(TOO_WIDE[isa], _show("objdump", "-d", "--no-show-raw-insn", library))
        assert found is None, found


def _show(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True).stdout
