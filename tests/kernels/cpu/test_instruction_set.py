"""Which instruction set runs: detected, forced or refused; several in one process."""

import logging
import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from paceline.api import load
from paceline.bench.machine import describe
from paceline.cli.app import run
from paceline.core.tree import Tree
from paceline.kernels.cpu import instruction_set as selection
from paceline.kernels.cpu.compile import INSTRUCTION_SETS, sets_of, this_architecture
from paceline.kernels.cpu.instruction_set import InstructionSetError, current_set, instruction_set, load_kernel
from paceline.kernels.cpu.noise import KernelNoise
from paceline.kernels.cpu.ops import CpuOps
from paceline.models.cpu.decoder import CpuDecoder
from paceline.models.cpu.packed_weights import PackedLinear, pack_linears
from tests.kernels.cpu.models import native

SETS = selection.available_sets()
OTHER = SETS[-1]  # its panels differ from those of any other set
two_sets = pytest.mark.skipif(len(SETS) < 2, reason="this processor has one instruction set")


@pytest.fixture
def features(monkeypatch):
    """Sets the processor's features; what was chosen is forgotten."""
    monkeypatch.delenv("PACELINE_ISA", raising=False)

    def give(*names):
        selection._default.cache_clear()
        monkeypatch.setattr(selection, "processor_features", lambda: frozenset(names))

    yield give
    selection._default.cache_clear()


def all_features(name):
    return next(one.features for one in INSTRUCTION_SETS if one.name == name)


@pytest.mark.skipif(this_architecture() != "x86_64", reason="sets of x86-64")
@pytest.mark.parametrize("name", [one.name for one in sets_of("x86_64")])
def test_fastest_set_that_the_processor_has_is_chosen(features, name):
    features(*all_features(name))
    names = [one.name for one in sets_of("x86_64")]
    assert list(selection.available_sets()) == names[names.index(name) :]
    assert current_set() == name


@pytest.mark.skipif(this_architecture() != "x86_64", reason="sets of x86-64")
def test_intel_processors_prefer_products_of_floats(features):
    features(*all_features("avx512bf16"), "intel")
    assert selection.available_sets() == ("avx512", "avx512bf16", "avx2", "baseline") and current_set() == "avx512"
    with instruction_set("avx512bf16"):
        assert current_set() == "avx512bf16"
    for name in ("avx512", "avx2", "baseline"):
        features(*all_features(name), "intel")
        assert current_set() == name


@pytest.mark.skipif(this_architecture() != "x86_64" or not Path("/proc/cpuinfo").exists(), reason="x86-64 Linux")
def test_the_vendor_is_the_one_that_the_system_names():
    assert ("intel" in selection.processor_features()) == ("GenuineIntel" in Path("/proc/cpuinfo").read_text())


@pytest.mark.skipif(this_architecture() != "x86_64", reason="sets of x86-64")
def test_one_missing_feature_takes_a_set_away(features):
    for name in ("avx2", "avx512", "avx512bf16"):
        for feature in all_features(name):
            features(*all_features("avx512bf16") - {feature})
            assert name not in selection.available_sets()


@pytest.mark.skipif(this_architecture() != "x86_64", reason="sets of x86-64")
def test_baseline_warns_once(features, caplog):
    features("avx2", "fma")
    with caplog.at_level(logging.WARNING, logger="paceline"):
        assert current_set() == current_set() == "baseline"
    (record,) = [record for record in caplog.records if "baseline" in record.message]
    assert "slower" in record.message and record.message.endswith("missing f16c")


def test_a_set_that_the_processor_lacks_is_refused(features, monkeypatch):
    features()
    best, only = selection._known()[0], selection._known()[-1].name
    monkeypatch.setenv("PACELINE_ISA", best.name)
    with pytest.raises(InstructionSetError) as raised:
        current_set()
    text = str(raised.value)
    assert text.startswith(f"PACELINE_ISA {best.name}: this processor, or its operating system, lacks ")
    assert all(feature in text for feature in best.features) and text.endswith(f"unset it, or give one of {only}")
    with pytest.raises(InstructionSetError, match="lacks"), instruction_set(best.name):
        pass


@pytest.mark.parametrize("name", ["sse9", "AVX2", "neon" if this_architecture() == "x86_64" else "avx2"])
def test_an_unknown_set_is_refused_before_any_work(monkeypatch, capsys, name):
    monkeypatch.setenv("PACELINE_ISA", name)
    with pytest.raises(InstructionSetError, match=f"PACELINE_ISA {name}: not an .*: unset it, or give"):
        load("/there/is/no/model")
    assert run(["inspect", "no/model"]) == 2
    assert f"PACELINE_ISA {name}" in capsys.readouterr().err


@two_sets
def test_variable_forces_a_set():
    code = "from paceline.bench.machine import describe; print(describe().instruction_set, describe())"
    environment = {**os.environ, "PACELINE_ISA": OTHER}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(OTHER) and f"CPU kernel for {OTHER}" in done.stdout


def test_machine_names_the_set():
    assert describe().instruction_set == current_set() and "instruction_set" in describe().identity()


@two_sets
def test_models_and_operations_keep_the_set_they_were_made_with(monkeypatch):
    monkeypatch.delenv("PACELINE_ISA", raising=False)
    lm, first = native("grouped", torch.float32), CpuDecoder(native("grouped", torch.float32))
    with instruction_set(OTHER):
        assert current_set() == OTHER and load_kernel() is load_kernel(OTHER)
        second, ops, noise = CpuDecoder(lm), CpuOps(), KernelNoise()
    assert load_kernel() is not load_kernel(OTHER)
    assert (first.isa, second.isa, ops.isa, noise.isa) == (current_set(), *[OTHER] * 3)
    assert second.new_cache(1, 8).workspace.isa == OTHER
    tree = Tree.make_chain(torch.tensor([[1, 2, 3]]), torch.ones(1, 3, dtype=torch.bool))
    cache = first.new_cache(1, 8)
    with torch.inference_mode():
        found = [model(tree, cache.view()).logits for model in (first, second, first)]
    assert torch.equal(found[0], found[2])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


@two_sets
def test_packed_weights_keep_their_set():
    lm = deepcopy(native("grouped", torch.bfloat16))
    with instruction_set(OTHER), torch.inference_mode():
        pack_linears(lm)
    packed = any(isinstance(layer, PackedLinear) for layer in lm.modules())
    assert CpuDecoder(lm).isa == (OTHER if packed else current_set())
