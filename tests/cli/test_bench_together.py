"""``paceline bench --together``, and what else the committed report is made with."""

import csv
import json
from importlib import import_module
from itertools import count

import pytest

from paceline.bench.benchmark import check_peer_counts
from paceline.bench.interleaved import run_interleaved
from paceline.bench.sweep import run_sweep
from paceline.cli import run
from paceline.cli.numbers import read_peer_counts
from paceline.engine.copy_plans import MAX_COPIED_TOKENS
from tests.api.checkpoints import VOCAB, pair
from tests.bench.programs import DEADLY, vllm_python

SMALL = ("--num-prompts", 2, "--max-tokens", 8, "--repeats", 2, "--attempts", 1, "--no-html", "--dtype", "float32")


def bench(output, *options):
    output.with_name("lines.txt").write_text("def add(first,\nimport os\n")
    own = () if "--prompt-file" in options else ("--prompt-file", output.with_name("lines.txt"))
    common = ("--target", pair().target, "--draft", pair().draft, "--output", output, "--drafter", "model")
    return run([str(word) for word in ("bench", "--together", *common, *SMALL, *own, *options)])


def records_of(path, kind="cell"):
    return [record for record in map(json.loads, path.read_text().splitlines()) if record["kind"] == kind]


def ways_of(path):
    return [(record["cell"]["drafter"], record["cell"]["num_draft_tokens"]) for record in records_of(path)]


@pytest.fixture(autouse=True)
def ticking(monkeypatch):
    """Everything takes a second, so no cell is void; nothing depends on the machine or on who edits the source."""
    for function in (run_sweep, run_interleaved):
        monkeypatch.setitem(function.__kwdefaults__, "clock", count().__next__)
    monkeypatch.setattr(import_module("paceline.bench.benchmark"), "hash_source", lambda: "unchanged")


@pytest.fixture
def raw(tmp_path):
    return tmp_path / "raw.jsonl"


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """vLLM is there, llama.cpp is not."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PACELINE_VLLM_PYTHON", str(vllm_python(tmp_path / "vllm")))
    monkeypatch.delenv("PACELINE_LLAMA_CPP", raising=False)


def test_one_run_pairs_ours_and_the_peers(raw, programs, tmp_path, capsys):
    options = ("--k", "1,2", "--tree", "4", "--batch", "1,2", "--peers", "--peer-k", "vllm=2", "--peer-k")
    assert bench(raw, *options, "vllm-lookup=none", "--peer-k", "transformers=none") == 0
    each = [("plain", 0), ("model", 1), ("model", 2), ("model tree 4", 2), ("vllm", 0), ("vllm-draft", 2)]
    assert ways_of(raw) == each * 2
    assert [record["interleaved"] for record in records_of(raw)] == [1] * 6 + [2] * 6
    assert all(len(record["rates"]) == 2 for record in records_of(raw))
    assert (
        records_of(raw, "head-to-head") == []
        and len(raw.with_suffix(".head-to-head.csv").read_text().splitlines()) == 5
    )
    out, before = capsys.readouterr().out, raw.read_bytes()
    assert "best against best" in out and "llama.cpp is missing" in out and "minutes of timing" in out
    assert "transformers" not in out
    assert len((tmp_path / "vllm" / "started.jsonl").read_text().splitlines()) == 4
    assert bench(raw, *options, "vllm-lookup=none", "--peer-k", "transformers=none") == 0
    assert raw.read_bytes() == before


def test_several_drafters_and_options_are_one_side(raw, capsys):
    names = ("auto", "copy+suffix:max_tokens=0", "ngram")
    assert bench(raw, "--k", "2", *(word for name in names for word in ("--drafter", name))) == 0
    chosen = [(name, MAX_COPIED_TOKENS) for name in names[:2]]
    assert ways_of(raw) == [("plain", 0), ("model", 2), ("ngram", 2), *chosen], (
        "those that choose their lengths say the longest"
    )
    for name, message in (("copy+oracle", "known here are copy"), ("suffix:tokens=0", "has no option 'tokens'")):
        assert bench(raw, "--k", "2", "--drafter", name) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_suffixes_of_ours_and_of_vllm_are_paired(raw, programs, tmp_path, capsys):
    options = ("--drafter", "suffix:max_tokens=0", "--k", "2", "--peer", "vllm", "--peer-k", "vllm-draft=none")
    assert bench(raw, *options, "--peer-k", "vllm-suffix=4") == 0
    assert "vllm-suffix is missing" in capsys.readouterr().out
    vllm_python(tmp_path / "vllm", arctic="0.3.0")
    assert bench(raw, *options, "--peer-k", "vllm-suffix=4") == 2
    assert "figures of vllm 0.0.1, and here is 0.0.1 with arctic-inference 0.3.0" in capsys.readouterr().err
    raw = raw.with_name("other.jsonl")
    assert bench(raw, *options, "--peer-k", "vllm-suffix=4", "--peer-k", "vllm-suffix-remembering=none") == 0
    ours = [("plain", 0), ("model", 2), ("suffix:max_tokens=0", 2)]
    assert ways_of(raw) == [*ours, ("vllm", 0), ("vllm-lookup", 2), ("vllm-suffix", 4)]
    assert "missing" not in capsys.readouterr().out


def test_a_peer_that_dies_is_reported_and_the_rest_is_measured(raw, programs, tmp_path, capsys):
    deadly = tmp_path / "deadly.jsonl"
    deadly.write_text(f'{{"tokens": [5, 6]}}\n{{"tokens": [{DEADLY % VOCAB}, 6]}}\n')
    path = tmp_path / "vllm" / "python"
    path.write_text(path.read_text().replace(f"== {DEADLY}", f"== {DEADLY % VOCAB}"))
    assert bench(raw, "--k", "2", "--peer", "vllm", "--prompt-file", deadly) == 0
    assert ways_of(raw) == [("plain", 0), ("model", 2)]
    out = capsys.readouterr().out
    assert out.count("| out of everything") == 3  # once for each of its ways; none is tried a second time
    assert len((tmp_path / "vllm" / "started.jsonl").read_text().splitlines()) == 3


def test_our_speed_is_set_against_what_the_machine_allows(raw, capsys):
    assert bench(raw, "--k", "2", "--tree", "4") == 0
    with raw.with_suffix(".csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["drafter"] for row in rows] == ["plain", "model", "model tree 4"]
    for row in rows:
        names = ("decoding_tokens_per_second", "limit_tokens_per_second", "of_limit")
        decoding, limit, share = (float(row[name]) for name in names)
        assert decoding > 0 and limit > 0 and share == pytest.approx(decoding / limit, rel=1e-3)


def test_sampling_stands_beside_greedy_decoding(raw, capsys):
    assert bench(raw, "--k", "2", "--temperature", "0,0.7", "--top-p", "0.95") == 0
    samplings = [(record["cell"]["temperature"], record["cell"]["top_p"]) for record in records_of(raw)]
    assert sorted(set(samplings)) == [(0.0, 1.0), (0.7, 0.95)] and len(samplings) == 4
    assert len(raw.with_suffix(".sampled.csv").read_text().splitlines()) == 3
    assert run(["bench", "report", str(raw)]) == 0
    assert "Sampling beside greedy decoding" in raw.with_suffix(".html").read_text()
    assert "sampling beside greedy decoding" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tree", "1"), "--tree 1: give nodes of at least 2"),
        (("--top-p", "0"), "--top-p 0: give more than 0"),
        (("--top-p", "1.5"), "--top-p 1.5: give more than 0"),
        (("--peer-k", "vllm"), "--peer-k vllm: give a peer or one of its modes"),
        (("--peer-k", "vllm=0"), "--peer-k vllm 0: give counts"),
        (("--peer", "vllm", "--peer-k", "vllm-drat=2"), "--peer-k vllm-drat: no such peer or mode here"),
        (("--peer-k", "sglang=2"), "--peer-k sglang: no such peer or mode here"),
        (("--peer", "vllm", "--k", "1-8"), "--together at batch 1: 17 programs of peers"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_any_work(raw, programs, capsys, options, message):
    assert bench(raw, *options) == 2
    assert message in capsys.readouterr().err and not raw.exists()


def test_trees_need_a_draft(raw, capsys):
    words = ("bench", "--target", pair().target, "--tree", "8", "--output", raw)
    assert run([str(word) for word in words]) == 2
    assert "--tree 8: trees are drafted by a model" in capsys.readouterr().err


def test_draft_lengths_of_peers():
    counts = read_peer_counts(["vllm=3,5", "vllm-lookup=none", "llama.cpp-draft=1-3"])
    assert counts == {"vllm": [3, 5], "vllm-lookup": [], "llama.cpp-draft": [1, 2, 3]}
    check_peer_counts(counts, known=["vllm", "vllm-lookup"], missing=["llama.cpp"])
    with pytest.raises(ValueError, match=r"--peer-k llama.cpp-draft: .*there are vllm, vllm-lookup"):
        check_peer_counts(counts, known=["vllm", "vllm-lookup"], missing=[])
