"""Cells on named instruction sets: what they are called, what they run on, and what is refused."""

import csv
import io
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from paceline.api import load
from paceline.bench.columns import to_csv
from paceline.bench.figures import best, break_evens, figures_of
from paceline.bench.head_to_head import choose_pairs, head_to_head_figures, keep_choices
from paceline.bench.instruction_sets import LIMITS, check_runs, limit_process, read_sets
from paceline.bench.interleaved import groups_of, plain_cell, run_interleaved
from paceline.bench.limits import limit_of
from paceline.bench.missing_peers import failures_of
from paceline.bench.peers import llama_cpp as llama_module
from paceline.bench.peers import vllm as vllm_module
from paceline.bench.peers.llama_cpp_build import NEEDED, wrong_build
from paceline.bench.raw import RawFile
from paceline.bench.report import CELLS, HEAD_TO_HEAD
from paceline.bench.sweep import Axes, Cell, Protocols, Ways, run_sweep
from paceline.bench.workbench import ModelBench, Models, load_sets
from paceline.kernels.cpu import operators
from paceline.kernels.cpu.compile import this_architecture
from paceline.kernels.cpu.instruction_set import available_sets, current_set
from paceline.models.cpu.packed_weights import packed_set
from tests.api.checkpoints import pair
from tests.bench.programs import llama_cpp, vllm_python
from tests.bench.scripted import Bench

AXES = Axes(
    drafters=["model"], num_draft_tokens=[1, 2], batch_sizes=[1, 4], temperatures=[0], max_tokens=[8], isas=["a", "b"]
)
PEER = Ways(plain="peer", drafting=("peer-draft",), batches=True)
CONDITIONS = {"dtype": "float32", "suite": "code"}
x86 = pytest.mark.skipif(this_architecture() != "x86_64", reason="sets of x86-64")


def cell(drafter="model", num_draft_tokens=2, isa=None, max_tokens=8):
    return Cell(
        drafter=drafter,
        num_draft_tokens=num_draft_tokens,
        batch_size=2,
        temperature=0.0,
        max_tokens=max_tokens,
        isa=isa,
    )


def measure(path, axes, *, together=True, bench=None):
    bench, raw = bench or Bench(), RawFile(path)
    options = dict(workbench=bench, raw=raw, conditions=CONDITIONS, notes={}, protocol=Protocols(repeats=2))
    if together:
        run = run_interleaved(axes.cells(), **options, clock=bench.clock, close=lambda: None)
    else:
        run = run_sweep(axes.cells(), **options, clock=bench.clock)
    return raw, run


def test_ours_are_repeated_on_each_set_and_peers_are_not():
    assert [(one.way, one.isa) for one in AXES.cells()[:4]] == [
        ("model k=1 on a", "a"),
        ("model k=2 on a", "a"),
        ("model k=1 on b", "b"),
        ("model k=2 on b", "b"),
    ]
    peers = [one.isa for one in replace(AXES, peers=[PEER]).cells() if one.drafter.startswith("peer")]
    assert len(peers) == 6 and set(peers) == {None}
    assert {one.isa for one in replace(AXES, isas=["a"], peers=[PEER]).cells()} == {"a"}


def test_a_cell_without_a_set_is_what_it_was(tmp_path):
    """The records that older versions wrote settle it."""
    own = cell(isa="a")
    assert "isa" not in cell().identity()["cell"] and own.identity()["cell"]["isa"] == "a"
    assert Cell(**cell().as_record()) == cell() != own == Cell(**own.as_record())
    old, again = replace(AXES, isas=[]), Bench()
    measure(tmp_path / "raw.jsonl", old, together=False)
    measure(tmp_path / "raw.jsonl", old, together=False, bench=again)
    assert again.made == []
    measure(tmp_path / "raw.jsonl", AXES, together=False, bench=again)
    assert again.made == AXES.cells()


def test_each_set_has_its_own_plain_decoding(tmp_path):
    group = groups_of(AXES.cells())[0]
    assert [one.way for one in group.cells][:2] == ["plain on a", "plain on b"] and len(group.cells) == 6
    assert plain_cell(group.cells[-1]).isa == "b"
    raw, _ = measure(tmp_path / "raw.jsonl", AXES)
    lines = figures_of(raw.records)
    assert len(lines) == 12 and len({line.cell for line in lines}) == 12
    assert {line.cell.method for line in best(lines)} == {"plain on a", "plain on b", "model on a", "model on b"}
    assert [line.cell.way for line, _ in break_evens(lines)] == [
        f"model k={k} on {isa}" for isa in "ab" for k in (1, 2)
    ]
    rows = list(csv.DictReader(io.StringIO(to_csv(CELLS, lines))))
    assert [row["set"] for row in rows[:6]] == ["a", "b", "a", "a", "b", "b"] and rows[2]["drafter"] == "model"


def test_peers_meet_ours_of_the_same_set(tmp_path):
    axes = replace(AXES, isas=["a"], peers=[PEER])
    raw, run = measure(tmp_path / "raw.jsonl", axes)
    pairs = keep_choices(choose_pairs(figures_of(raw.records), run=run, axes=axes), raw=raw, run=run)
    assert len(pairs) == 4 and all(pair.ours.isa == pair.other.isa == "a" for pair in pairs)
    lines = head_to_head_figures(RawFile(tmp_path / "raw.jsonl").records)
    assert len(lines) == 4 and "set" in to_csv(HEAD_TO_HEAD, lines).splitlines()[0].split(",")
    assert str(pairs[1]).startswith("model k=1 on a against peer-draft k=1 on a, ")


def test_columns_of_sets_are_left_out_where_none_was_named(tmp_path):
    raw, _ = measure(tmp_path / "raw.jsonl", replace(AXES, isas=[]))
    assert "set" not in to_csv(CELLS, figures_of(raw.records)).splitlines()[0].split(",")


def test_failures_name_the_set():
    failure = {"kind": "failure", "run": "1", "task": cell(isa="a").identity(), "message": "it died"}
    assert failures_of([failure])[0].task == "model k=2 on a, batch 2, temperature 0, 8 tokens"


@pytest.fixture(scope="module")
def sets():
    """The pair loaded on two sets; every x86 processor has the last."""
    names = [current_set(), available_sets()[-1]]
    if names[0] == names[1]:
        pytest.skip("this processor has one instruction set")
    given = {"dtype": torch.float32, "device": "cpu"}
    return load_sets(names, lambda: Models(target=load(pair().target, **given), draft=load(pair().draft, **given)))


@pytest.fixture
def bench(sets):
    first = next(iter(sets.values()))
    return ModelBench(
        target=first.target,
        draft=first.draft,
        target_path=pair().target,
        draft_path=pair().draft,
        prompts=[first.target.tokenizer.encode(text) for text in ("def add(first,", "import os")],
        seed=3,
        sets=sets,
    )


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["plain", "ngram", "model", "model tree 4"])
def test_cells_run_on_the_set_that_they_name(bench, sets, drafter, monkeypatch):
    """Every function of the kernel is taken from the library of its set."""
    used, found = set(), {}

    def spy(isa, *rest):
        used.add((isa, rest[0]))
        return operators.entry(isa, *rest)

    for module in ("models.cpu.forward", "kernels.cpu.batch", "kernels.cpu.noise", "kernels.cpu.sampling"):
        monkeypatch.setattr(f"paceline.{module}.entry", spy)
    for isa, models in sets.items():
        assert packed_set(models.target.lm) == packed_set(models.draft.lm) == isa
        used.clear()
        one = cell(drafter, isa=isa)
        made = bench.plain("plain", one) if drafter == "plain" else bench.candidate("own", one)
        found[isa] = made.run().tokens
        assert {name for name, _ in used} == {isa}
        assert {"forward", "record"} <= {function for _, function in used}
    first, second = found.values()
    assert first == second and sum(map(len, first)) == 16


def test_each_set_has_rates_of_its_own(bench, sets):
    rates = bench.rates()
    assert set(rates) == {f"{name} on {isa}" for name in ("read", "flops") for isa in sets}
    isa, counted = next(iter(sets)), {"drafted": [2], "steps": 4}
    work = {"weight_bytes": 1, "num_weights": 1, "slot_bytes": 0, "slot_flops": 0, "dtype": "float32"}
    record = {
        "steps": {"candidate": 4},
        "rates": [rates],
        "decode_seconds": {"candidate": [1.0]},
        "texts": [{"counts": counted}],
        "num_tokens": 8,
    }
    assert limit_of(record, {"work": {"target": work, "draft": None}}, cell("ngram", isa=isa)) > 0
    assert bench.setting().isa is None and replace(bench, sets={isa: sets[isa]}).setting().isa == isa


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("sse9", {}, "--isa sse9: not an instruction set of"),
        ("", {}, "--isa : not an instruction set of"),
        ("avx2", {"backend": "hf"}, "--isa avx2 with --backend hf: .*leave out one of them"),
        ("avx2", {"device": "cuda:1"}, "--isa avx2 with --device cuda:1: .*give --device cpu"),
    ],
)
def test_sets_that_do_not_go_together_with_the_rest_are_refused(text, options, message):
    with pytest.raises(ValueError, match=message):
        read_sets(text, **options)


def test_sets_are_read_once_each():
    last = available_sets()[-1]
    assert read_sets(f"{last}, {last}") == [last] and read_sets(None) == []


def test_models_without_the_kernel_are_refused():
    loaded = load(pair().target, device="cpu", enforce_eager=True)
    with pytest.raises(ValueError, match=r"--isa a: .* does not run by the CPU kernel"):
        check_runs(loaded, "a")


def limited(isa, *, before="", environment=None):
    """What a process says that limits itself to a set."""
    program = f"""
import os, torch
{before}
from paceline.bench.instruction_sets import limit_process
try:
    print(limit_process([{isa!r}]), torch.backends.cpu.get_cpu_capability())
except ValueError as error:
    print(error, "MKL_ENABLE_INSTRUCTIONS" in os.environ)
"""
    clean = {name: value for name, value in os.environ.items() if name not in LIMITS["avx2"]}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**clean, **(environment or {})},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@x86
@pytest.mark.slow
def test_torch_is_limited_before_its_first_use():
    assert limited("baseline").endswith("'MKL_ENABLE_INSTRUCTIONS': 'SSE4_2'} DEFAULT")
    said = limited("baseline", environment={"ONEDNN_MAX_CPU_ISA": "AVX2"})
    assert said == "--isa baseline with --peers: ONEDNN_MAX_CPU_ISA is AVX2, and baseline needs SSE41; unset it False"
    if torch.backends.cpu.get_cpu_capability() != "DEFAULT":
        said = limited("baseline", before="torch.ones(3) + 1")
        assert "already, as it was used before" in said and said.endswith("its own False")


def test_peers_run_on_one_set():
    with pytest.raises(ValueError, match="--isa a,b with --peers: peers run on one set at a time; give one"):
        limit_process(["a", "b"])
    assert limit_process([]) == {}


def cache(folder, **options):
    path = folder / "build" / "CMakeCache.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("# This is the CMakeCache file.\n" + "".join(f"{k}:BOOL={v}\n" for k, v in options.items()))
    return folder


def test_builds_of_llama_cpp_for_other_sets_are_refused(tmp_path):
    assert "which says what it was built for" in wrong_build(tmp_path, "avx2")
    own = wrong_build(cache(tmp_path, GGML_NATIVE="ON"), "avx2")
    assert "(GGML_NATIVE=ON, GGML_AVX2=OFF, GGML_FMA=OFF, GGML_F16C=OFF)" in own
    assert own.endswith("cmake -B build -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON")
    for isa, names in NEEDED.items():
        on = dict.fromkeys(names, "ON")
        assert wrong_build(cache(tmp_path, GGML_NATIVE="OFF", **on), isa) is None
        for more in {"GGML_NATIVE", "GGML_CPU_ALL_VARIANTS", "GGML_AVX512", "GGML_AMX_TILE"} - set(names):
            assert f"-D{more}=OFF" in wrong_build(cache(tmp_path, **on, **{more: "ON"}), isa)


@x86
def test_peers_that_cannot_be_limited_are_missing(bench, tmp_path):
    best, last = vllm_module.largest_set(), available_sets()[-1]
    limited = {isa: replace(bench.setting(), isa=isa) for isa in (best, last)}
    python, folder = vllm_python(tmp_path / "vllm"), llama_cpp(tmp_path / "llama")
    assert vllm_module.find(python, limited[best]).name == "vllm"
    reason = vllm_module.find(python, limited[last]).reason
    assert reason == f"it runs on this processor's largest set alone; give --isa {best}"
    cache(folder, **dict.fromkeys(NEEDED[last], "ON"))
    assert llama_module.find(folder, limited[last]).name == "llama.cpp"
    assert f"not built for {best} alone" in llama_module.find(folder, limited[best]).reason
