"""What a library of the kernel may contain, and that every processor loads the one it can run."""

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from paceline.kernels.cpu import instruction_set as selection
from paceline.kernels.cpu.build import features_library, kernel_library
from paceline.kernels.cpu.compile import SOURCES, find_compiler, sets_of, this_architecture
from tests.kernels.cpu.contents import check_contents, needs_binutils

needs_qemu = pytest.mark.skipif(
    shutil.which("qemu-x86_64") is None or this_architecture() != "x86_64", reason="qemu-x86_64 is not installed"
)
PROCESSORS = {"Nehalem": ["baseline"], "SandyBridge": ["baseline"], "Haswell": ["avx2", "baseline"]}


@needs_binutils
def test_the_library_exports_its_interface_alone_and_runs_nothing_when_loaded():
    check_contents(kernel_library(selection._find(selection.current_set())), selection.current_set())
    check_contents(features_library(), "baseline")


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    path = tmp_path_factory.mktemp("driver") / "driver"
    source = Path(__file__).parent / "driver.cpp"
    subprocess.run([find_compiler(), "-std=c++17", "-I", SOURCES, "-o", path, source, "-ldl"], check=True)
    return path


def emulate(processor, *words):
    command = ["qemu-x86_64", "-cpu", processor, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@needs_qemu
@pytest.mark.slow
@pytest.mark.parametrize("processor", PROCESSORS)
def test_emulated_processors_run_the_library_that_detection_chooses(driver, monkeypatch, processor):
    found = emulate(processor, driver, features_library())
    assert found.returncode == 0, found.stderr
    monkeypatch.setattr(selection, "processor_features", lambda: frozenset(found.stdout.split()))
    sets = selection.available_sets()
    assert list(sets) == PROCESSORS[processor]
    for name in sets:
        done = emulate(processor, driver, features_library(), kernel_library(selection._find(name)))
        assert done.returncode == 0 and done.stdout.endswith("equal\n"), (name, done.returncode, done.stderr)


@needs_qemu
@pytest.mark.slow
def test_the_emulator_notices_instructions_that_a_processor_lacks(driver):
    done = emulate("Nehalem", driver, features_library(), kernel_library(selection._find("avx2")))
    assert done.returncode in (-signal.SIGILL, 128 + signal.SIGILL)


def test_every_flag_of_a_set_is_a_feature_that_is_detected():
    names = set(re.findall(r'names\.add\(.*, "(\w+)"\)', (SOURCES / "isa" / "features.cpp").read_text()))
    for isa in (*sets_of("x86_64"), *sets_of("aarch64")):
        assert isa.features <= names
