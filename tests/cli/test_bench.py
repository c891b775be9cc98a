import json
import os
import subprocess
import sys
from importlib import import_module
from itertools import count

import pytest

from benchmarks.__main__ import main as run_study
from paceline.api import load
from paceline.bench.instruction_sets import LIMITS
from paceline.bench.limits import limit_of
from paceline.bench.raw import fingerprint
from paceline.bench.suites import choose
from paceline.bench.sweep import Cell, run_sweep
from paceline.cli import run
from paceline.cli.numbers import read_counts
from paceline.draft_heads.files import save_head
from paceline.engine.copy_plans import MAX_COPIED_TOKENS
from paceline.kernels.cpu.compile import this_architecture
from paceline.kernels.cpu.instruction_set import available_sets, current_set
from paceline.models.fingerprint import fingerprint as fingerprint_of
from tests.api.checkpoints import VOCAB, pair
from tests.bench.programs import DEADLY, vllm_python
from tests.draft_heads.test_prophet import make

SMALL = ("--num-prompts", 2, "--max-tokens", 8, "--repeats", 1, "--attempts", 1, "--no-html", "--dtype", "float64")


two_sets = pytest.mark.skipif(len(available_sets()) < 2, reason="this processor has one instruction set")
VLLM_WAYS = [("vllm", 0), *((way, k) for way in ("vllm-draft", "vllm-lookup") for k in (1, 2))]


def bench(output, *options):
    own = () if set(options) & {"--suite", "--questions", "--prompt-file"} else ("--prompt-file", prompts(output))
    pair_options = ("--target", pair().target, "--draft", pair().draft, "--output", output)
    return run([str(word) for word in ("bench", *pair_options, *SMALL, *own, *options)])


def prompts(output):
    path = output.with_name("lines.txt")
    path.write_text("def add(first,\nfor item in items:\nimport os\n")
    return path


def cells_of(path):
    return [record for record in map(json.loads, path.read_text().splitlines()) if record["kind"] == "cell"]


@pytest.fixture(autouse=True)
def ticking(monkeypatch):
    """Everything takes a second, so no cell is void; nothing depends on the machine or on who edits the source."""
    monkeypatch.setitem(run_sweep.__kwdefaults__, "clock", count().__next__)
    monkeypatch.setattr(import_module("paceline.bench.benchmark"), "hash_source", lambda: "unchanged")


@pytest.fixture
def raw(tmp_path):
    return tmp_path / "raw.jsonl"


def test_a_sweep_writes_raw_figures_and_a_table(raw, capsys):
    assert bench(raw, "--k", "1-2", "--batch", "1,2") == 0
    cells = [tuple(record["cell"].values())[:5] for record in cells_of(raw)]
    expected = [(name, k, batch, 0.0, 8) for batch in (1, 2) for name in ("ngram", "model") for k in (1, 2)]
    assert cells == expected
    assert all(record["num_tokens"] == 16 and record["num_threads"] == 1 for record in cells_of(raw))
    out = capsys.readouterr().out
    assert "ngram" in out and "float64, 1 thread, lines.txt, temperature 0, 8 tokens" in out
    assert len(raw.with_suffix(".csv").read_text().splitlines()) == 9 and not raw.with_suffix(".html").exists()


def test_quantised_models_have_their_limits(raw):
    assert bench(raw, "--drafter", "model", "--k", "1", "--quantization", "int8", "--draft-quantization", "int4") == 0
    begun = next(record for record in map(json.loads, raw.read_text().splitlines()) if record["kind"] == "run")
    conditions = begun["conditions"]
    assert [conditions["work"][name]["quantization"] for name in ("target", "draft")] == ["int8", "int4"]
    (record,) = cells_of(raw)
    assert limit_of(record, conditions, Cell(**record["cell"])) > 0


def test_heads_are_timed_under_their_own_names(raw, tmp_path, capsys):
    target = load(pair().target, device="cpu").lm
    folders = [tmp_path / "a" / "ours", tmp_path / "b" / "ours"]
    for folder in folders:
        save_head(make("prophet", target), folder, target_name="target", fingerprint=fingerprint_of(target))
    assert bench(raw, "--drafter", folders[0], "--k", "2") == 0
    (record,) = cells_of(raw)
    assert record["cell"]["drafter"] == "ours" and sum(record["texts"][0]["counts"]["drafted"]) > 0
    begun = next(record for record in map(json.loads, raw.read_text().splitlines()) if record["kind"] == "run")
    assert [head["name"] for head in begun["conditions"]["heads"]] == ["ours"]
    capsys.readouterr()
    assert bench(raw, "--drafter", folders[0], "--drafter", folders[1]) == 2
    assert "another draft head has the same name" in capsys.readouterr().err


def test_a_head_may_have_a_plus_in_its_name(raw, tmp_path):
    target, folder = load(pair().target, device="cpu").lm, tmp_path / "copy+ours"
    save_head(make("prophet", target), folder, target_name="target", fingerprint=fingerprint_of(target))
    assert bench(raw, "--drafter", folder, "--k", "2") == 0
    (record,) = cells_of(raw)
    assert (record["cell"]["drafter"], record["cell"]["num_draft_tokens"]) == ("copy+ours", 2)
    assert sum(record["texts"][0]["counts"]["drafted"]) > 0


def test_drafters_are_written_as_everywhere(raw, tmp_path):
    folder = tmp_path / "a+b"
    folder.symlink_to(pair().target, target_is_directory=True)  # every draft of it is accepted
    single = [
        "layer_skip:on_the_fly=true,ratio=0.3",
        f"model:{folder} < ngram",
        f"model:{folder} x2 + ngram",
        str(folder),
    ]
    listed = [f"copy+model:{folder} < ngram", "copy+model"]
    options = [word for name in single + listed for word in ("--drafter", name)]
    assert bench(raw, "--k", "2", *options) == 0
    found = {record["cell"]["drafter"]: record for record in cells_of(raw)}
    assert {name: record["cell"]["num_draft_tokens"] for name, record in found.items()} == {
        **dict.fromkeys(single, 2),
        **dict.fromkeys(listed, MAX_COPIED_TOKENS),
    }
    for name in single:  # whether drafts of one that is listed pay, which the target's own never do, its timings say
        assert sum(found[name]["texts"][0]["counts"]["drafted"]) > 0, name


def test_running_it_again_measures_what_is_missing(raw):
    assert bench(raw, "--drafter", "ngram", "--k", "1") == 0
    before = raw.read_bytes()
    assert bench(raw, "--drafter", "ngram", "--k", "1") == 0
    assert raw.read_bytes() == before
    assert bench(raw, "--drafter", "ngram", "--k", "1,3") == 0
    assert raw.read_bytes().startswith(before) and len(cells_of(raw)) == 2
    assert bench(raw, "--drafter", "ngram", "--k", "1", "--seed", "1") == 0
    assert raw.read_text().count('"kind": "run"') == 2


def test_reports_are_made_again_from_raw_figures(raw, capsys):
    assert bench(raw, "--k", "2") == 0
    table = capsys.readouterr().out.split("raw figures")[0]
    raw.with_suffix(".csv").unlink()
    assert run(["bench", "report", str(raw)]) == 0
    assert capsys.readouterr().out.split("raw figures")[0] == table
    assert raw.with_suffix(".csv").exists()
    assert "<svg" in raw.with_suffix(".html").read_text() and "void" not in table


def test_peers_run_in_the_same_sweep(raw):
    assert bench(raw, "--k", "2", "--drafter", "model", "--batch", "1,2", "--peers") == 0
    found = [(record["cell"]["drafter"], record["cell"]["batch_size"]) for record in cells_of(raw)]
    assert found.count(("transformers", 2)) == 1 and ("transformers-lookup", 1) in found
    assert ("transformers-assisted", 2) not in found
    assert all(text["first_difference"] is None for record in cells_of(raw) for text in record["texts"])


def test_best_configurations_are_compared_with_each_peer(raw, capsys):
    options = ("--k", "1,2", "--drafter", "model", "--batch", "1,2", "--peers")
    assert bench(raw, *options) == 0
    lines = [json.loads(line) for line in raw.read_text().splitlines()]
    comparisons = [line["pair"] for line in lines if line["kind"] == "head-to-head"]
    found = [
        (comparison["ours"]["batch_size"], comparison["ours"]["drafter"], comparison["other"]["drafter"])
        for comparison in comparisons
    ]
    assert found[0] == (1, "plain", "transformers") and found[-2:] == [
        (2, "plain", "transformers"),
        (2, "model", "transformers"),
    ]
    assert found[1][:2] == (1, "model") and found[1][2].startswith("transformers-")
    assert all(
        text["first_difference"] is None for line in lines if line["kind"] == "head-to-head" for text in line["texts"]
    )
    out, before = capsys.readouterr().out, raw.read_bytes()
    assert "best against best" in out and raw.with_suffix(".head-to-head.csv").exists()
    assert bench(raw, *options) == 0 and raw.read_bytes() == before


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """vLLM is there, llama.cpp is not."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PACELINE_VLLM_PYTHON", str(vllm_python(tmp_path / "vllm")))
    monkeypatch.delenv("PACELINE_LLAMA_CPP", raising=False)


@pytest.mark.slow
def test_programs_are_peers_and_missing_ones_are_reported(raw, programs, capsys):
    options = ("--k", "1,2", "--drafter", "ngram", "--batch", "1,2", "--peers", "--html", "--dtype", "float32")
    assert bench(raw, *options) == 0
    found = [tuple(record["cell"].values())[:3] for record in cells_of(raw)]
    assert [cell for cell in found if cell[0].startswith("vllm")] == [
        (way, k, batch) for batch in (1, 2) for way, k in VLLM_WAYS
    ]
    lines = [json.loads(line) for line in raw.read_text().splitlines()]
    assert [(line["peer"], line["version"] is None) for line in lines if line["kind"] == "peer"] == [
        ("transformers", False),
        ("vllm", False),
        ("vllm-suffix", True),
        ("llama.cpp", True),
    ]
    comparisons = [line["pair"] for line in lines if line["kind"] == "head-to-head"]
    met = [(comparison["ours"]["drafter"], comparison["other"]["drafter"][:5]) for comparison in comparisons]
    assert met.count(("plain", "vllm")) == 2 and met.count(("ngram", "vllm-")) == 2
    out, before = capsys.readouterr().out, raw.read_bytes()
    assert "llama.cpp is missing: build it as docs/benchmarks.md says and give --llama-cpp DIR" in out
    assert "has no arctic-inference" in out
    page = raw.with_suffix(".html").read_text()
    assert "<li>vllm 0.0.1</li>" in page and "<li>llama.cpp is missing: build it as" in page
    assert bench(raw, *options) == 0 and raw.read_bytes() == before


def test_one_peer_alone(raw, programs):
    assert bench(raw, "--k", "2", "--drafter", "ngram", "--peer", "vllm", "--dtype", "float32") == 0
    assert [record["cell"]["drafter"] for record in cells_of(raw)] == ["ngram", "vllm", "vllm-draft", "vllm-lookup"]
    assert '"kind": "peer"' in raw.read_text() and "transformers-" not in raw.read_text()


def test_peer_given_by_name_must_be_installed(raw, programs, capsys):
    assert bench(raw, "--peer", "llama.cpp") == 2
    assert "--peer llama.cpp is missing: build it" in capsys.readouterr().err
    assert bench(raw, "--peer", "sglang") == 2
    assert "unknown peer sglang" in capsys.readouterr().err
    assert not raw.exists()


def test_a_peer_that_dies_is_reported_and_the_rest_goes_on(raw, programs, tmp_path, capsys):
    deadly = tmp_path / "deadly.jsonl"
    deadly.write_text(f'{{"tokens": [5, 6]}}\n{{"tokens": [{DEADLY % VOCAB}, 6]}}\n')
    path = tmp_path / "vllm" / "python"
    path.write_text(path.read_text().replace(f"== {DEADLY}", f"== {DEADLY % VOCAB}"))
    assert (
        bench(raw, "--k", "2", "--drafter", "ngram", "--peer", "vllm", "--dtype", "float32", "--prompt-file", deadly)
        == 0
    )
    assert [record["cell"]["drafter"] for record in cells_of(raw)] == ["ngram"]
    out = capsys.readouterr().out
    assert "vllm-draft k=2, batch 1, temperature 0, 8 tokens failed: vllm-draft: it died" in out
    assert "| out of everything" in out


def test_own_prompts_and_questions(raw, tmp_path):
    own = tmp_path / "prompts.jsonl"
    own.write_text('{"prompt": "x = 1"}\n{"tokens": [5, 6, 7]}\n{"prompt": "import os"}\n')
    questions = tmp_path / "question.jsonl"
    questions.write_text('{"question_id": 1, "category": "a", "turns": ["One?"]}\n' * 2)
    assert bench(raw, "--k", "1", "--drafter", "ngram", "--prompt-file", own) == 0
    assert bench(raw, "--k", "1", "--drafter", "ngram", "--questions", questions) == 0
    assert [len(record["texts"]) for record in cells_of(raw)] == [2, 2]
    rows = raw.with_suffix(".categories.csv").read_text().splitlines()
    assert len(rows) == 2 and ",a,False," in rows[1]


def test_categories_follow_the_prompts_that_were_chosen(raw, tmp_path):
    questions = tmp_path / "question.jsonl"
    lines = [{"question_id": at, "category": f"c{at}", "turns": [f"Number {at}?"]} for at in range(9)]
    questions.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert bench(raw, "--k", "1", "--drafter", "ngram", "--questions", questions, "--num-prompts", 4) == 0
    tokenizer, order = load(pair().target).tokenizer, choose(range(9), 4, seed=0)
    prompts = next(map(json.loads, raw.read_text().splitlines()))["conditions"]["prompts"]
    assert prompts["categories"] == [f"c{at}" for at in order]
    chosen = [tokenizer.encode(f"Number {at}?") for at in order]
    assert prompts["hash"] == fingerprint({"prompts": chosen})


def test_the_grid_is_one_command(raw, monkeypatch, capsys):
    """The draft model alone, over the field's lengths, here shortened; a mean for each gamma."""
    command = import_module("paceline.cli.bench_options")
    assert (command.GRID_DRAFT_TOKENS, command.GRID_MAX_TOKENS) == ("1,2,4,8", "50,100,200,500")
    monkeypatch.setattr(command, "GRID_MAX_TOKENS", "4,6")
    words = ("bench", "--target", pair().target, "--draft", pair().draft, "--output", raw, "--grid", "--no-html")
    options = ("--num-prompts", 1, "--repeats", 1, "--attempts", 1, "--prompt-file", prompts(raw))
    assert run([str(word) for word in (*words, *options)]) == 0
    found = [(record["cell"]["num_draft_tokens"], record["cell"]["max_tokens"]) for record in cells_of(raw)]
    assert found == [(k, tokens) for tokens in (4, 6) for k in (1, 2, 4, 8)]
    means = capsys.readouterr().out.split("means over lengths of text")[1]
    # Every side takes a second: speed-up 1, and 4 and 6 tokens in it.
    assert [tuple(line.split()[-3:]) for line in means.splitlines() if "4, 6" in line] == [
        (gamma, "1.00", "5.0") for gamma in ("1", "2", "4", "8")
    ]


def test_the_grid_as_it_is_fits_the_embedded_pair(raw, monkeypatch):
    """All sixteen cells, of which only the first ticks of a scripted clock are seen here."""
    found = []
    monkeypatch.setattr(import_module("paceline.bench.benchmark"), "run_sweep", lambda tasks, **_: found.extend(tasks))
    options = ("--grid", "--no-html", "--num-prompts", "8", "--output", str(raw))
    assert run(["bench", *options]) == 2  # nothing was measured, so there is nothing to report
    assert {(task.drafter, task.num_draft_tokens, task.max_tokens) for task in found} == {
        ("model", k, tokens) for k in (1, 2, 4, 8) for tokens in (50, 100, 200, 500)
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--k", "0"), "--k 0: give counts of at least 1"),
        (("--k", "4-2"), "--k 4-2"),
        (("--batch", "one"), "--batch one"),
        (("--temperature", "-1"), "--temperature -1"),
        (("--temperature", "warm"), "--temperature warm"),
        (("--drafter", "oracle"), "--drafter oracle: known here are"),
        (("--drafter", "none"), "--drafter none: known here are"),
        (("--drafter", "copy+oracle"), "--drafter oracle: known here are"),
        (("--drafter", "layer_skip:on_the_fly=perhaps"), "on_the_fly=perhaps"),
        (("--drafter", "model:no/model/here < ngram"), "no/model/here"),
        (("--drafter", "ngram < ngram"), "cannot be drafted for: only a draft model can"),
        (("--grid",), "--grid with --k or --max-tokens"),
        (("--suite", "novel"), "unknown suite 'novel'"),
        (("--suite", "code", "--questions", "file"), "give one of them"),
        (("--suite", "code"), "leave the target's context of 512"),
        (("--repeats", "0"), "--repeats 0: give at least 1"),
        (("--threads", "0"), "--threads 0"),
        (("--num-prompts", "0"), "--num-prompts 0"),
        (("--dtype", "int8"), "--dtype int8"),
        (("--batch", "3"), "2 prompts and batch size 3"),
        (("--max-tokens", "600"), "leave the target's context of 512"),
        (("--prompt-file", "none.jsonl"), "none.jsonl"),
        (("--isa", "sse9"), "--isa sse9: not an instruction set of"),
        (("--isa", available_sets()[-1], "--backend", "hf"), "with --backend hf: transformers' code has no"),
        (("--isa", available_sets()[-1], "--device", "cuda"), "with --device cuda: instruction sets are the CPU's"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_any_work(raw, capsys, options, message):
    assert bench(raw, *options) == 2
    assert message in capsys.readouterr().err
    assert not raw.exists()


@two_sets
def test_ours_are_timed_on_each_set(raw, capsys):
    first, last = current_set(), available_sets()[-1]
    assert bench(raw, "--k", "2", "--drafter", "model", "--isa", f"{first},{last}", "--together") == 0
    found = [(record["cell"]["drafter"], record["cell"]["isa"]) for record in cells_of(raw)]
    assert found == [("plain", first), ("plain", last), ("model", first), ("model", last)]
    assert len({record["interleaved"] for record in cells_of(raw)}) == 1
    assert all(text["first_difference"] is None for record in cells_of(raw) for text in record["texts"])
    assert "model on" in capsys.readouterr().out
    before = raw.read_bytes()
    assert bench(raw, "--k", "2", "--drafter", "model", "--isa", last, "--together") == 0
    assert raw.read_bytes() == before


@two_sets
def test_sets_with_peers(raw, capsys):
    first, last = available_sets()[0], available_sets()[-1]
    assert bench(raw, "--isa", f"{first},{last}", "--peer", "transformers") == 2
    assert f"--isa {first},{last} with --peers: peers run on one set at a time; give one" in capsys.readouterr().err
    assert not raw.exists()


@pytest.mark.slow
@pytest.mark.skipif(this_architecture() != "x86_64", reason="peers are limited on x86-64 alone")
def test_peers_run_on_the_set_that_was_named(raw):
    """In a process of its own: torch has been used in this one."""
    last = available_sets()[-1]
    words = ("--target", pair().target, "--draft", pair().draft, "--output", raw, "--prompt-file", prompts(raw))
    options = ("--k", "2", "--drafter", "model", "--isa", last, "--peers", "--peer-k", "transformers=1", "--threads", 1)
    command = [sys.executable, "-m", "paceline", "bench", *words, *SMALL, *options]
    clean = {name: value for name, value in os.environ.items() if name not in LIMITS[last]}
    subprocess.run([str(word) for word in command], check=True, capture_output=True, env=clean)
    records = [json.loads(line) for line in raw.read_text().splitlines()]
    assert records[0]["conditions"]["peer_limits"] == LIMITS[last]
    found = [record["cell"] for record in records if record["kind"] == "cell"]
    assert {one["isa"] for one in found} == {last} and {one["drafter"] for one in found} >= {"model", "transformers"}
    pairs = [record["pair"] for record in records if record["kind"] == "head-to-head"]
    assert pairs and all(side["isa"] == last for one in pairs for side in one.values())


def test_peers_cannot_assist_with_another_vocabulary(raw, tmp_path, capsys):
    words = ["--model", str(pair().target), "--output", str(tmp_path / "wide"), "--vocab", "2000"]
    assert run_study(["inflate", *words]) == 0
    assert bench(raw, "--target", tmp_path / "wide", "--peers") == 2
    assert "--peers with 2000 token ids of the target" in capsys.readouterr().err
    assert not raw.exists()
    assert bench(raw, "--target", tmp_path / "wide", "--k", "1", "--drafter", "model") == 0


def test_a_draft_needs_its_target(raw, capsys):
    assert run(["bench", "--draft", str(pair().draft), "--output", str(raw)]) == 2
    assert "give --target too" in capsys.readouterr().err


def test_an_interruption_keeps_what_is_done(raw, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    assert bench(raw, "--drafter", "ngram", "--k", "1") == 0
    before = raw.read_bytes()
    monkeypatch.setattr("paceline.bench.sweep.compare", interrupt)
    assert bench(raw, "--drafter", "ngram", "--k", "1,2") == 130
    assert "run the same command to continue" in capsys.readouterr().err and raw.read_bytes() == before


def test_reports_of_other_files_are_refused(tmp_path, capsys):
    assert run(["bench", "report", str(tmp_path / "none.jsonl")]) == 2
    (tmp_path / "empty.jsonl").write_text("")
    assert run(["bench", "report", str(tmp_path / "empty.jsonl")]) == 2
    assert "nothing to report" in capsys.readouterr().err


def test_counts_are_lists_and_ranges():
    assert read_counts("1-3,8,2", option="--k") == [1, 2, 3, 8]


def test_runs_of_other_conditions_are_reported_side_by_side(raw):
    """The same cells under another seed: their batch sizes do not belong to one line."""
    for seed in ("1", "2"):
        assert bench(raw, "--drafter", "ngram", "--k", "1", "--batch", "1,2", "--seed", seed) == 0
    assert len(raw.with_suffix(".csv").read_text().splitlines()) == 5
