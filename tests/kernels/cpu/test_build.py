"""How the kernel comes to be: compiled once, kept, portable, and missed without harm."""

import logging
import os
from copy import deepcopy

import pytest
import torch

from paceline.core.tree import Tree
from paceline.kernels.cpu import build
from paceline.kernels.cpu.build import KernelError, load_kernel
from paceline.models import backend
from paceline.models.cpu import program
from paceline.models.cpu.decoder import CpuDecoder
from paceline.models.cpu.packed_weights import PackedLinear, pack_linears
from paceline.models.native.quantization import SCHEMES
from tests.kernels.cpu.models import native, quantised
from tests.models.layouts import LAYOUTS, random_tree, texts


@pytest.fixture
def afresh(monkeypatch, tmp_path):
    """No kernel is loaded, none is cached, and this process forgets what it builds here."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    load_kernel.cache_clear()
    backend.warn_eager.cache_clear()
    yield tmp_path / "kernels"
    load_kernel.cache_clear()


def write_compiler(path, body):
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_library_is_built_once_and_cached(afresh, monkeypatch, tmp_path):
    calls = tmp_path / "calls"
    real = build.find_compiler()
    script = f'case "$1" in --version) ;; *) echo called >> {calls} ;; esac\nexec {real} "$@"'
    monkeypatch.setenv("CXX", write_compiler(tmp_path / "cxx", script))
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-O0"))
    for _ in range(2):
        load_kernel()
        load_kernel.cache_clear()
    assert calls.read_text().count("called") == 1
    assert [path.suffix for path in afresh.iterdir()] == [".so"]


def test_changed_flags_build_another_library(afresh, monkeypatch, tmp_path):
    monkeypatch.setenv(
        "CXX", write_compiler(tmp_path / "cxx", 'while [ $# -gt 0 ]; do [ "$1" = -o ] && : > "$2"; shift; done')
    )
    names = set()
    for flags in (build.FLAGS, (*build.FLAGS, "-DOTHER")):
        monkeypatch.setattr(build, "FLAGS", flags)
        with pytest.raises(KernelError, match="cannot be loaded"):  # an empty file is no library
            load_kernel()
        names |= {path.name for path in afresh.iterdir()}
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
    assert not list(afresh.iterdir())


def test_falls_back_to_generic_build_and_warns(afresh, monkeypatch, tmp_path, caplog):
    refusal = 'for a in "$@"; do [ "$a" = -march=native ] && echo what machine >&2 && exit 1; done'
    script = f'{refusal}\nexec {build.find_compiler()} "$@"'
    monkeypatch.setenv("CXX", write_compiler(tmp_path / "cxx", script))
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-O0"))
    with caplog.at_level(logging.WARNING, logger="paceline"):
        check("grouped", torch.float32)
    assert "built without CPU-specific instructions, which is slower: what machine" in caplog.text


def test_native_build_does_not_warn(afresh, monkeypatch, caplog):
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-O0"))
    with caplog.at_level(logging.WARNING, logger="paceline"):
        load_kernel()
    assert not caplog.records


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


@pytest.mark.slow
def test_build_without_avx512_matches_eager(afresh, monkeypatch):
    """The portable code: what is compiled where neither AVX-512 nor products of bfloat16 are."""
    monkeypatch.setattr(build, "ATTEMPTS", ((),))
    for layout in LAYOUTS:
        check(layout, torch.float32)
    for layout in ("grouped", "gpt2", "gpt_neox"):
        check(layout, torch.float64, 1e-10)
        check(layout, torch.bfloat16, 0.03)
    for quantization in SCHEMES:
        with torch.inference_mode():  # as whoever made the layout's model first
            lm = deepcopy(quantised("grouped", torch.bfloat16, quantization))
            pack_linears(lm)
        assert not any(isinstance(module, PackedLinear) for module in lm.modules())
        compare(lm, 0.06)  # eagerly a product of int8 is rounded twice


def test_unsupported_model_runs_eagerly(caplog):
    lm = native("grouped", torch.float32)
    odd = type(lm)(lm.config)
    odd.blocks[1].ffn.activation = torch.sigmoid
    with pytest.raises(program.UnsupportedError, match="activation"):
        CpuDecoder(odd)
    with caplog.at_level(logging.INFO, logger="paceline"):
        assert backend.fastest(odd) is odd
    assert "activation" in caplog.text


def test_float16_and_column_major_weights_are_refused():
    lm = native("gpt2", torch.float32)
    rotary_dim = type(lm)(lm.config)
    weight = rotary_dim.blocks[0].ffn.up.weight
    weight.data = weight.data.t().contiguous().t()
    with pytest.raises(program.UnsupportedError, match="row-major"):
        CpuDecoder(rotary_dim)
    with pytest.raises(program.UnsupportedError, match="float16"):
        CpuDecoder(type(lm)(lm.config).half())


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("PACELINE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.cache_folder() == tmp_path / "paceline" / "kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", os.fspath(tmp_path / "home"))
    assert build.cache_folder() == tmp_path / "home" / ".cache" / "paceline" / "kernels"
