"""The wheel of this platform: what is in it, and that it generates where there is no compiler. ``make test-wheel``."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from paceline.kernels.cpu import compile as compiling
from paceline.kernels.cpu.instruction_set import available_sets
from tests.kernels.cpu.contents import check_contents, needs_binutils

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
SETS = [one.name for one in compiling.sets_of(compiling.this_architecture())]
GENERATE = """
import json, paceline
from paceline.api import embedded_pair, generate, load, SamplingParams
from paceline.bench.machine import describe
from paceline.models.backend import fastest
target, draft = (load(path) for path in embedded_pair())
(result,) = generate(target, "def add(a, b):", SamplingParams(max_tokens=8, temperature=0.0), drafter=draft)
print(json.dumps([paceline.__file__, type(fastest(target.lm)).__name__, describe().instruction_set, result.text]))
"""


def build(folder, **environment):
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT]
    subprocess.run(command, env={**os.environ, **environment}, check=True)
    (wheel,) = folder.iterdir()
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """With flags of this machine in the environment, which must not get in."""
    folder = tmp_path_factory.mktemp("wheel")
    return build(folder, CXXFLAGS="-march=native", CFLAGS="-march=native", PACELINE_REQUIRE_SETS=",".join(SETS))


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Python of an environment with the wheel, and with the packages that it needs."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    own = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "pip", "--python", own, "install", "--quiet", "--no-deps", wheel], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT / 'demo' / 'src'}\n")
    return own


def run(python, folder, *words, **variables):
    """Without a compiler on the path, in an empty folder."""
    environment = {"PATH": str(folder), "HOME": str(folder), "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run([python, *words], cwd=folder, env=environment, capture_output=True, text=True)


def test_the_wheel_is_of_this_platform_and_has_every_set(wheel):
    assert "-py3-none-" in wheel.name and not wheel.name.endswith("-any.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    libraries = {Path(name).name for name in names if name.endswith(".so")}
    assert "paceline/py.typed" in names
    assert libraries == {compiling.library_name(name) for name in (*SETS, compiling.FEATURES)}


@needs_binutils
@pytest.mark.parametrize("isa", SETS)
def test_no_flag_of_this_machine_gets_into_a_library(wheel, tmp_path, isa):
    with zipfile.ZipFile(wheel) as opened:
        path = opened.extract(f"paceline/kernels/cpu/lib/{compiling.library_name(isa)}", tmp_path)
    check_contents(path, isa)


@pytest.mark.parametrize("isa", [None, *available_sets()[1:]])
def test_an_installed_wheel_generates_without_a_compiler(python, tmp_path, isa):
    done = run(python, tmp_path, "-c", GENERATE, **({} if isa is None else {"PACELINE_ISA": isa}))
    assert done.returncode == 0, done.stderr
    file, decoder, used, text = json.loads(done.stdout)
    assert python.parents[1] in Path(file).parents and decoder == "CpuDecoder"
    assert used == (isa or available_sets()[0]) and text
    assert not done.stderr or isa == "baseline", done.stderr
    assert not list(tmp_path.rglob("*.so")), "nothing was built"


def test_a_set_that_does_not_exist_is_refused(python, tmp_path):
    done = run(python, tmp_path, "-m", "paceline.cli", "inspect", "/there/is/no/model", PACELINE_ISA="sse9")
    assert done.returncode == 2 and "PACELINE_ISA sse9" in done.stderr


def test_a_wheel_without_a_compiler_is_pure(tmp_path):
    assert build(tmp_path, CXX="no-such-compiler").name.endswith("-py3-none-any.whl")
