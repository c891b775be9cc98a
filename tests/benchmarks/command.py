"""The studies' command in its smallest forms, on a machine where everything takes a second."""

import json
from itertools import count

import pytest

from benchmarks import gpu_sides, sampling_cost, study, verifier_cost
from benchmarks.__main__ import main
from paceline.bench.runner import compare
from paceline.hardware.rates import Products, Rates
from tests.api.checkpoints import pair

PAIR = ("--target", pair().target, "--draft", pair().draft)
QUICK = ("--repeats", 2, "--seconds", 0)
SMALL = {
    "batched": (
        *PAIR,
        *"--dtype float64 --batch 1,2 --k 2 --suite prose --num-prompts 2 --max-tokens 9 --repeats 3".split(),
    ),
    "controller": (
        *PAIR,
        *"--dtype float32 --suites prose --batch 1,2 --temperatures 0.8 --k 2 --max-tokens 8".split(),
        *"--num-parts 2 --repeats 2".split(),
    ),
    "drafters": (*PAIR, *"--dtype float32 --suites code --num-prompts 1 --max-tokens 8 --repeats 2".split()),
    "gpu": (*PAIR, *"--device cpu --parameters 0.5M --dtype float64 --max-tokens 6 --batch 1,2 --k 2".split()),
    "heads": (
        *PAIR,
        *"--dtype float32 --suite prose --temperatures 0.8 --batch 1,2 --depths 1,2 --num-prompts 2".split(),
        *"--together 2 --max-tokens 8 --repeats 2".split(),
    ),
    "lengths": (*PAIR, *"--dtype float32 --suite prose --depths 1,2 --lengths 4,9 --num-prompts 2".split()),
    "resume": (*PAIR[:2], *"--exit 1,2 --batch 1,3 --context 9 --k 2 --num-steps 3 --dtype float64".split()),
    "sampling-cost": (*PAIR, *QUICK, *"--dtype float32 --rows 1 --k 0,2".split()),
    "scaling": (*PAIR, *QUICK, *"--rows 1,3 --nodes 1,4 --context 8,600 --length 5 --prompt 9".split()),
    "load": (*PAIR, *"--minutes 0 --streams 2 --num-tokens 8 --repeats 2".split()),
    "serving": (*PAIR, *"--num-tokens 8 --repeats 2 --starts 1".split()),
    "verifier-cost": (*QUICK, *"--quick --k 1,3 --rows 1,3".split()),
    "verifier-ranking": (
        *PAIR,
        *"--dtype float32 --num-prompts 1 --seeds 1 --max-tokens 4 --temperature 1 --top-p 1".split(),
    ),
}
DTYPES = ("bfloat16", "float32", "float64")
RATES = Rates(
    device="cpu",
    num_threads=1,
    working_set=1 << 20,
    read=1e9,
    copy=1e9,
    products={name: Products(itemsize=2, rows=(1, 2), bytes_per_second=(1e9, 1e9), peak=1e10) for name in DTYPES},
)


@pytest.fixture
def still_machine(monkeypatch):
    """Every call takes a second, memory is read at 1 GB/s, and nobody edits the source."""

    def ticks(_):
        return count().__next__

    monkeypatch.setattr(study.Timing, "clock", property(ticks))
    monkeypatch.setattr(study, "hash_source", lambda: "unchanged")
    monkeypatch.setattr("benchmarks.rates.measure_rates", lambda **_: RATES)
    monkeypatch.setattr(gpu_sides, "compare", lambda *sides, **given: compare(*sides, clock=ticks(0), **given))
    for module in (sampling_cost, verifier_cost):
        monkeypatch.setattr(module, "read_rate", lambda **_: 1e9)


def run(study, *words):
    """The exit code of ``study``; of an option that is given twice the last counts."""
    options: dict[str, list[str]] = {}
    last = ""
    for word in map(str, words):
        if word.startswith("--"):
            options[word], last = [], word
        options[last].append(word)
    return main([study, *(word for group in options.values() for word in group)])


def small(study, path, *words):
    """The exit code of the smallest form of ``study``, with other options."""
    return run(study, *SMALL[study], "--output", path, *words)


def records_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def measured(study, path, capsys):
    """What the smallest form of ``study`` writes and prints. It measures nothing twice, and shows its file again."""
    assert small(study, path) == 0
    out = capsys.readouterr().out
    before = path.read_bytes()
    assert small(study, path) == 0 and path.read_bytes() == before, "what is there is not measured again"
    capsys.readouterr()
    assert run(study, "--report", "--output", path) == 0 and capsys.readouterr().out == out
    return records_of(path), out
