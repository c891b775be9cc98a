"""How the kernel's libraries are made: compiled once per instruction set, cached, and missed without harm."""

import ctypes
import logging
import os
import subprocess
import sys
from functools import cache

import pytest
import torch

from paceline.core.tree import Tree
from paceline.kernels.cpu import build
from paceline.kernels.cpu import compile as compiling
from paceline.kernels.cpu import instruction_set as selection
from paceline.kernels.cpu.compile import KernelError, find_compiler
from paceline.kernels.cpu.instruction_set import available_sets, instruction_set, load_kernel
from paceline.models import backend
from paceline.models.cpu import program
from paceline.models.cpu.decoder import CpuDecoder
from tests.kernels.cpu.forgetting import forget_libraries
from tests.kernels.cpu.models import native
from tests.models.layouts import random_tree, texts


@pytest.fixture
def afresh(monkeypatch, tmp_path):
    """No kernel is loaded, none is cached, and this process forgets what it builds here."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.delenv("PACELINE_ISA", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    forget_libraries()
    backend.warn_eager.cache_clear()
    yield tmp_path / "kernels"
    forget_libraries()


@pytest.fixture
def quick(monkeypatch):
    """Compilation takes less time, and so do the kernels not."""
    monkeypatch.setattr(compiling, "FLAGS", (*compiling.FLAGS, "-O0"))


def write_compiler(path, body):
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.slow
def test_library_is_built_once_and_cached(afresh, quick, monkeypatch, tmp_path, caplog):
    calls = tmp_path / "calls"
    script = f'case "$*" in *units*) echo called >> {calls} ;; esac\nexec {find_compiler()} "$@"'
    monkeypatch.setenv("CXX", write_compiler(tmp_path / "cxx", script))
    with caplog.at_level(logging.WARNING, logger="paceline"):
        for _ in range(2):
            load_kernel("baseline")
            forget_libraries()
    assert calls.read_text().count("called") == len(list((compiling.SOURCES / "units").glob("*.cpp")))
    features, kernel = sorted(afresh.glob("*.so"), key=lambda path: "baseline" in path.name)
    assert features.match("cpu-features-*.so") and kernel.match("cpu-baseline-*.so")
    (record,) = caplog.records
    assert record.message == f"building the CPU kernel for baseline, once, as {kernel} (20 to 30 seconds)"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_build_shows_its_progress_on_a_terminal_and_nowhere_else(afresh, tmp_path, terminal):
    """A compiler that compiles nothing is enough to count its files."""
    pty = pytest.importorskip("pty")
    compiler = write_compiler(tmp_path / "cxx", "exit 0")
    program = (
        "from pathlib import Path; from paceline.kernels.cpu import compile, progress\n"
        f"with progress.build_progress('neon', len(compile.kernel_units())) as compiled:\n"
        f"    compile.compile_kernel({compiler!r}, compile.INSTRUCTION_SETS[-1], Path('x'), Path(), compiled=compiled)"
    )
    reading, writing = pty.openpty() if terminal else os.pipe()
    variables = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    subprocess.run([sys.executable, "-c", program], stderr=writing, env=variables, check=True)
    os.close(writing)
    with open(reading, "rb", buffering=0) as stream:
        shown = stream.read(1 << 16) or b""
    total = len(compiling.kernel_units())
    assert (b"building the CPU kernel for neon" in shown and f"{total}/{total}".encode() in shown) == terminal
    assert terminal or shown == b""


@pytest.mark.slow
def test_processes_that_start_together_build_once(afresh, tmp_path):
    calls = tmp_path / "calls"
    fake = write_compiler(
        tmp_path / "cxx", f'case "$*" in *units/step*) echo called >> {calls} ;; esac\nexec {find_compiler()} "$@" -O0'
    )
    code = "from paceline.kernels.cpu.instruction_set import load_kernel; load_kernel('baseline')"
    environment = {**os.environ, "CXX": fake}
    started = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(2)]
    assert [one.wait() for one in started] == [0, 0]
    assert calls.read_text().split() == ["called"]


def test_changed_flags_build_another_library(afresh, monkeypatch, tmp_path):
    monkeypatch.setenv(
        "CXX", write_compiler(tmp_path / "cxx", 'while [ $# -gt 0 ]; do [ "$1" = -o ] && : > "$2"; shift; done')
    )
    names = set()
    for flags in (compiling.FLAGS, (*compiling.FLAGS, "-DOTHER")):
        monkeypatch.setattr(compiling, "FLAGS", flags)
        with pytest.raises(KernelError, match="cannot be loaded"):  # an empty file is no library
            load_kernel()
        names |= {path.name for path in afresh.glob("*.so")}
    assert len(names) == 2


def test_falls_back_to_eager_without_a_compiler_and_warns_once(afresh, monkeypatch, caplog):
    monkeypatch.setenv("PATH", "")
    lm = native("grouped", torch.float32)
    with caplog.at_level(logging.WARNING, logger="paceline"):
        assert backend.fastest(lm) is lm and backend.fastest(lm) is lm
    assert [record.message for record in caplog.records] == [
        "models run eagerly, which is slower: no C++ compiler: c++, g++, clang++ not found; install one, or set CXX"
    ]


def test_failed_build_leaves_no_file_and_quotes_the_compiler(afresh, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", write_compiler(tmp_path / "cxx", "echo out of luck >&2; exit 3"))
    with pytest.raises(KernelError, match="out of luck"):
        load_kernel()
    assert [path.name for path in afresh.iterdir()] in ([], [build.LOCK])


@pytest.mark.slow
def test_a_set_that_the_compiler_does_not_know_is_passed_over_with_a_warning(
    afresh, quick, monkeypatch, tmp_path, caplog
):
    """It is not built with other flags under its name."""
    # Not Intel's, whose first choice is another set than the largest.
    features = frozenset(selection.processor_features() - {"intel"})
    monkeypatch.setattr(selection, "processor_features", cache(lambda: features))
    best, second = available_sets()[:2]
    refusal = f'case "$*" in *{max(flags_of(best) - flags_of(second))}*) echo what flag >&2; exit 1 ;; esac'
    monkeypatch.setenv("CXX", write_compiler(tmp_path / "cxx", f'{refusal}\nexec {find_compiler()} "$@"'))
    forget_libraries()
    with caplog.at_level(logging.WARNING, logger="paceline"):
        model = CpuDecoder(native("grouped", torch.float32))
    assert model.isa == second
    assert f"the CPU kernel runs without {best}, which is slower" in caplog.text
    with instruction_set(best), pytest.raises(KernelError, match="does not know"):
        load_kernel()


def flags_of(name):
    return next(set(one.flags) for one in compiling.INSTRUCTION_SETS if one.name == name)


# The best set is the one of all other tests, AVX2 is the most common one; others take half a minute to build.
SOON = {available_sets()[0], "avx2"}


@pytest.mark.parametrize(
    "isa", [pytest.param(isa, marks=[] if isa in SOON else [pytest.mark.slow]) for isa in available_sets()]
)
def test_every_set_matches_eager(isa):
    with instruction_set(isa):
        check("grouped", torch.float32)


def check(layout, dtype, tolerance=1e-4):
    compare(native(layout, dtype), tolerance)


def compare(lm, tolerance):
    own, tree = CpuDecoder(lm), random_tree(2, 9, 4)
    prompt = Tree.make_chain(texts(2, 11), torch.ones(2, 11, dtype=torch.bool))
    found = []
    with torch.inference_mode():
        for model in (lm, own):
            cache = model.new_cache(2, 40).view()
            model(prompt, cache)
            cache.commit(torch.full((2,), 11))
            found.append(model(tree, cache).logits[tree.valid])
    assert float((found[0] - found[1]).abs().max()) <= tolerance * max(1.0, float(found[0].abs().max()))


def test_unsupported_model_runs_eagerly(caplog):
    lm = native("grouped", torch.float32)
    odd = type(lm)(lm.config)
    odd.blocks[1].ffn.activation = torch.sigmoid
    with pytest.raises(program.UnsupportedError, match="activation"):
        CpuDecoder(odd)
    with caplog.at_level(logging.INFO, logger="paceline"):
        assert backend.fastest(odd) is odd
    assert "activation" in caplog.text


def test_column_major_weights_are_refused():
    lm = native("gpt2", torch.float32)
    rotary_dim = type(lm)(lm.config)
    weight = rotary_dim.blocks[0].ffn.up.weight
    weight.data = weight.data.t().contiguous().t()
    with pytest.raises(program.UnsupportedError, match="row-major"):
        CpuDecoder(rotary_dim)


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("PACELINE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.cache_folder() == tmp_path / "paceline" / "kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", os.fspath(tmp_path / "home"))
    assert build.cache_folder() == tmp_path / "home" / ".cache" / "paceline" / "kernels"


def test_the_compiler_fuses_no_product_with_a_sum(tmp_path):
    """Tiles must round alike whatever a compiler would choose: only multiply_add is rounded once."""
    source = tmp_path / "fused.cpp"
    shown = 'extern "C" __attribute__((visibility("default")))'
    source.write_text(f"{shown} double paceline_f(double a, double b, double c) {{ return a * b + c; }}\n")
    isa = next(one for one in compiling.INSTRUCTION_SETS if one.name == available_sets()[0])
    compiling.compile_units(compiling.find_compiler(), [source], isa.flags, tmp_path / "fused.so", tmp_path)
    run = ctypes.CDLL(str(tmp_path / "fused.so")).paceline_f
    run.restype, run.argtypes = ctypes.c_double, [ctypes.c_double] * 3
    near = 1 + 2.0**-30
    assert run(near, near, -(near * near)) == 0, "rounded after the product, as fused it leaves 2**-60"
