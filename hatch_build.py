"""Builds the wheel's CPU kernel: a library per instruction set of the platform, where there is a compiler.

Such a wheel is tagged py3-none-<platform>: the libraries touch neither Python's nor torch's ABI. Without a compiler, or
with PACELINE_PURE_WHEEL=1, the wheel is pure, and its kernel is built at first use. PACELINE_REQUIRE_SETS, a list of
names with commas between, fails the build unless it makes exactly these. CXX names the compiler; CXXFLAGS is not used,
so no flag of this machine gets in.
"""

import importlib.util
import os
import re
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNEL = "src/paceline/kernels/cpu"
# The first manylinux platform whose processes have this version of libstdc++, by its last number.
GLIBCXX = {19: 17, 22: 24, 24: 27, 25: 28, 28: 31, 29: 34, 30: 35, 33: 39}


class KernelBuildHook(BuildHookInterface):
    """Compiles the kernel into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the libraries and the platform to what is built."""
        if self.target_name != "wheel" or version == "editable" or os.environ.get("PACELINE_PURE_WHEEL"):
            return
        compiling = _load(Path(self.root) / KERNEL / "compile.py")
        try:
            compiler = compiling.find_compiler()
        except compiling.KernelError as error:
            self.app.display_warning(f"the wheel is pure, its kernel is built at first use: {error}")
            return
        self._folder = tempfile.TemporaryDirectory()
        libraries = self._compile(compiling, compiler, Path(self._folder.name))
        for path in libraries:
            build_data["force_include"][str(path)] = f"paceline/kernels/cpu/lib/{path.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform(libraries)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the libraries from the temporary folder."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()

    def _compile(self, compiling: ModuleType, compiler: str, folder: Path) -> list[Path]:
        """The libraries of all sets that the compiler knows, and the one that detects features."""
        made, names = [folder / compiling.library_name(compiling.FEATURES)], []
        with tempfile.TemporaryDirectory() as objects:
            compiling.compile_features(compiler, made[0], Path(objects))
            for isa in compiling.sets_of(compiling.this_architecture()):
                if not compiling.knows_flags(compiler, isa):
                    self.app.display_warning(
                        f"the wheel has no kernel for {isa.name}: {compiler} does not know {' '.join(isa.flags)}"
                    )
                    continue
                self.app.display_info(f"compiling the CPU kernel for {isa.name}")
                made.append(folder / compiling.library_name(isa.name))
                compiling.compile_kernel(compiler, isa, made[-1], Path(objects))
                names.append(isa.name)
        required = os.environ.get("PACELINE_REQUIRE_SETS")
        if required and sorted(required.split(",")) != sorted(names):
            raise RuntimeError(f"PACELINE_REQUIRE_SETS={required}: {compiler} makes {','.join(names)}")
        return made


def _load(path: Path) -> ModuleType:
    """A module by its file: the package itself needs torch."""
    spec = importlib.util.spec_from_file_location("paceline_compile", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _platform(libraries: list[Path]) -> str:
    """The platform tag: on Linux the oldest manylinux that has the versions of libc and libstdc++ that were linked."""
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    if not platform.startswith("linux_") or os.confstr("CS_GNU_LIBC_VERSION") is None:
        return platform
    content = b"".join(path.read_bytes() for path in libraries)
    libc = max((int(found) for found in re.findall(rb"GLIBC_2\.(\d+)", content)), default=17)
    library = max((int(found) for found in re.findall(rb"GLIBCXX_3\.4\.(\d+)", content)), default=0)
    needed = next((minor for number, minor in sorted(GLIBCXX.items()) if library <= number), None)
    if needed is None:
        return platform
    return platform.replace("linux_", f"manylinux_2_{max(17, libc, needed)}_", 1)
