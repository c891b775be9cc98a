"""vLLM and llama.cpp as programs: what is asked of them, when they run and stand still, and how they fail."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import psutil
import pytest
import torch

from paceline.bench.missing_peers import keep_peers, missing_of, peers_of
from paceline.bench.peers import PEERS, find_peers
from paceline.bench.peers import llama_cpp as llama_module
from paceline.bench.peers import vllm as vllm_module
from paceline.bench.peers.base import PeerSettings, PeerUnavailable
from paceline.bench.peers.process import Answering, first_cores
from paceline.bench.peers.programs import ProgramPool
from paceline.bench.raw import RawFile
from paceline.bench.runner import DecodingFailed, compare
from paceline.bench.sweep import Cell
from tests.api.checkpoints import pair
from tests.bench.programs import DEADLY, OLD, executable, llama_cpp, vllm_python

PROMPTS = [[1, 5], [2, 7, 9], [3], [4, 4]]


@pytest.fixture
def setting(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return PeerSettings(
        target=pair().target,
        draft=pair().draft,
        dtype=torch.float32,
        device=torch.device("cpu"),
        num_threads=1,
        cores=(0, 1),
    )


def vllm(tmp_path, setting):
    return vllm_module.find(vllm_python(tmp_path / "vllm"), setting)


def llama(tmp_path, setting):
    return llama_module.find(llama_cpp(tmp_path / "llama"), setting)


@pytest.fixture(params=[vllm, llama])
def peer(request, tmp_path, setting):
    made = request.param(tmp_path, setting)
    yield made
    made.close()


def cell(way, num_draft_tokens=0, batch_size=1, max_tokens=6, temperature=0.0, top_p=1.0):
    return Cell(
        drafter=way,
        num_draft_tokens=num_draft_tokens,
        batch_size=batch_size,
        temperature=temperature,
        max_tokens=max_tokens,
        top_p=top_p,
    )


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def program(peer):
    running = peer.programs.last
    return running if isinstance(running, Answering) else running.process


def until(holds):
    """Signals take effect when the kernel gets to it."""
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_every_prompt_is_continued_in_its_place(peer, batch_size):
    for way, k in ((peer.ways.plain, 0), *((way, 2) for way in peer.ways.drafting_at(batch_size))):
        made = peer.decoding("peer", cell(way, k, batch_size), prompts=PROMPTS, seed=0)
        assert len(made.parts) == 4 // batch_size
        assert made.run().tokens == tuple(tuple(range(p[-1] + 1, p[-1] + 7)) for p in PROMPTS)


def test_steps_are_counted_from_what_it_says_of_its_drafts(tmp_path, setting):
    peer = vllm(tmp_path, setting)

    def steps(way, k, max_tokens=6, peer=peer):
        made = peer.decoding("peer", cell(way, k, 2, max_tokens), prompts=PROMPTS, seed=0).run()
        return made.summary and (made.summary.steps, made.summary.emitted, [text.steps for text in made.texts])

    assert steps("vllm", 0) == (24, 24, [6] * 4)
    assert steps("vllm-draft", 2) == (16, 24, [4] * 4), "the first token and three drafts, which one token was cut off"
    assert steps("vllm-lookup", 2, 20) == (64, 80, [16] * 4), "all but what was drafted: not every step drafts"
    peer.close()
    old = vllm_module.find(vllm_python(tmp_path / "old", version=OLD), setting)
    assert steps("vllm", 0, peer=old) == (24, 24, [6] * 4)
    assert steps("vllm-draft", 2, peer=old) is None
    old.close()


def test_it_stands_still_between_its_turns(peer):
    made = peer.decoding("peer", cell(peer.ways.plain), prompts=PROMPTS, seed=0)
    watched = psutil.Process(program(peer).popen.pid)
    for part in made.parts[:2]:
        until(lambda: watched.status() == psutil.STATUS_STOPPED)
        with program(peer).awake():
            until(lambda: watched.status() != psutil.STATUS_STOPPED)
        until(lambda: watched.status() == psutil.STATUS_STOPPED)
        part()
    peer.close()
    assert not watched.is_running()


def test_one_program_serves_all_that_is_timed_alike(peer, tmp_path):
    def count():
        return sum(len(lines(path)) for path in tmp_path.glob("*/started.jsonl"))

    other = peer.decoding("other", cell(peer.ways.plain), prompts=PROMPTS, seed=0)
    control = peer.decoding("control", cell(peer.ways.plain), prompts=PROMPTS, seed=0)
    comparison = compare([other, control], baseline="other", repeats=2)
    assert comparison["control"].identical and count() == 1
    peer.decoding("longer", cell(peer.ways.plain, batch_size=2), prompts=PROMPTS, seed=0)
    assert count() == 2
    with pytest.raises(DecodingFailed, match="it was ended"):
        other.run()


def test_several_programs_are_held_open_where_they_may_be(peer, tmp_path):
    """With room for two, a third ends the oldest, and what is open serves again."""
    peer.programs = ProgramPool(2)
    made = [peer.decoding("peer", cell(peer.ways.plain, batch_size=size), prompts=PROMPTS, seed=0) for size in (1, 2)]
    texts = [one.run().tokens for one in made]
    assert texts[0] == texts[1] == made[0].run().tokens
    peer.decoding("peer", cell(peer.ways.plain, batch_size=4), prompts=PROMPTS, seed=0)
    with pytest.raises(DecodingFailed, match="it was ended"):
        made[0].run()
    assert made[1].run().tokens == texts[1]
    peer.close()
    with pytest.raises(DecodingFailed, match="it was ended"):
        made[1].run()


def test_sampling_is_on_our_terms(peer, tmp_path):
    peer.decoding("peer", cell(peer.ways.plain, temperature=0.7, top_p=0.95), prompts=PROMPTS, seed=3).run()
    (orders,) = tmp_path.glob("*/orders.jsonl")
    order = lines(orders)[1]
    assert (order["temperature"], order["top_p"]) == (0.7, 0.95) and (order.get("seed") or order["seeds"][0]) == 4
    assert order.get("samplers", ["temperature", "top_p"]) == ["temperature", "top_p"]


def test_llama_cpp_tells_its_steps(tmp_path, setting):
    peer = llama(tmp_path, setting)
    steps = {}
    for way, k in ((peer.ways.plain, 0), ("llama.cpp-draft", 3)):
        sample = peer.decoding("peer", cell(way, k, 2), prompts=PROMPTS, seed=0).run()
        assert sample.summary.emitted == 4 * 6 and len(sample.texts) == 4
        steps[way] = sample.summary.steps
    peer.close()
    assert steps == {"llama.cpp": 24, "llama.cpp-draft": 12}


def test_a_death_is_reported_with_its_last_words(peer):
    made = peer.decoding("peer", cell(peer.ways.plain), prompts=[*PROMPTS, [DEADLY]], seed=0)
    with pytest.raises(DecodingFailed, match=r"(?s)exit code 7.*\| out of everything") as caught:
        made.run()
    assert str(caught.value).startswith(peer.ways.plain)
    again = peer.decoding("peer", cell(peer.ways.plain), prompts=[*PROMPTS, [DEADLY]], seed=0)
    assert again.parts[0]().tokens == ((6, 7, 8, 9, 10, 11),)


def test_vllm_is_given_our_terms(tmp_path, setting):
    peer = vllm(tmp_path, setting)
    for way, k in ((peer.ways.plain, 0), ("vllm-draft", 3), ("vllm-lookup", 2)):
        peer.decoding("peer", cell(way, k, 2), prompts=PROMPTS, seed=0)
    peer.close()
    plain, drafted, lookup = lines(tmp_path / "vllm" / "started.jsonl")
    assert (plain["dtype"], plain["max_num_seqs"]) == ("float32", 2)
    widened = tmp_path / "cache" / "paceline" / "peers" / "vllm"
    assert {Path(plain["model"]), Path(drafted["speculative_config"]["model"])} == set(widened.iterdir())
    assert plain["max_model_len"] == 3 + 6 + 1 and drafted["max_model_len"] == 3 + 6 + 3 + 1
    assert (plain["OMP_NUM_THREADS"], plain["VLLM_CPU_OMP_THREADS_BIND"]) == ("1", "0")
    assert not plain["enable_prefix_caching"] and "speculative_config" not in plain
    assert drafted["speculative_config"]["num_speculative_tokens"] == 3
    assert drafted["speculative_config"]["method"] == "draft_model"
    assert lookup["speculative_config"]["method"] == "ngram"


def test_suffixes_are_of_this_text_unless_outputs_are_remembered(tmp_path, setting):
    """With vLLM's default, every repeat would copy the last one's outputs."""
    peer = vllm_module.find(vllm_python(tmp_path / "vllm", arctic="0.3.0"), setting)
    assert peer.ways.drafting == ("vllm-draft", "vllm-lookup", "vllm-suffix", "vllm-suffix-remembering")
    for way in peer.ways.drafting[2:]:
        made = peer.decoding("peer", cell(way, 5, 2), prompts=PROMPTS, seed=0)
        assert made.run().tokens == tuple(tuple(range(p[-1] + 1, p[-1] + 7)) for p in PROMPTS)
    peer.close()
    forgetting, remembering = (line["speculative_config"] for line in lines(tmp_path / "vllm" / "started.jsonl"))
    assert remembering == {"method": "suffix", "num_speculative_tokens": 5}
    assert forgetting == {**remembering, "suffix_decoding_max_cached_requests": 0}


def test_llama_cpp_is_given_our_terms(tmp_path, setting):
    peer = llama(tmp_path, setting)
    for way, k in ((peer.ways.plain, 0), ("llama.cpp-draft", 3), ("llama.cpp-draft-confident", 3)):
        peer.decoding("peer", cell(way, k, 2), prompts=PROMPTS, seed=0)
    peer.close()
    plain, drafted, confident = map(" ".join, lines(tmp_path / "llama" / "started.jsonl"))
    assert "--threads 1 --threads-batch 1 --parallel 2 --ctx-size 512 " in plain and "--spec-type" not in plain
    assert "--spec-draft-n-max 3" in drafted and "--spec-draft-p-min 0 " in drafted
    assert "--spec-draft-p-min 0.75" in confident
    target, draft = lines(tmp_path / "llama" / "converted.jsonl")  # once each
    assert target["words"][:3] == [str(pair().target), "--outtype", "f32"] and draft["words"][0] == str(pair().draft)
    assert target["splitting"] == "gpt-2" and target["pieces"] == "none"


@pytest.mark.parametrize(("num_draft_tokens", "ngram"), [(1, 1), (2, 2), (8, 3)])
def test_a_lookup_of_llama_cpp_is_no_longer_than_its_draft(tmp_path, setting, num_draft_tokens, ngram):
    """Its server drops drafts that are shorter than what must have occurred."""
    peer = llama(tmp_path, setting)
    peer.decoding("peer", cell("llama.cpp-lookup", num_draft_tokens), prompts=PROMPTS, seed=0)
    peer.close()
    (words,) = map(" ".join, lines(tmp_path / "llama" / "started.jsonl"))
    sizes = f"--spec-ngram-simple-size-n {ngram} --spec-ngram-simple-size-m {num_draft_tokens}"
    assert f"--spec-type ngram-simple {sizes}" in words


def test_a_converter_that_fails_is_quoted(tmp_path, setting):
    peer = llama(tmp_path, setting)
    executable(tmp_path / "llama" / "convert_hf_to_gguf.py", "raise SystemExit('no such architecture')")
    with pytest.raises(DecodingFailed, match=r"(?s)wrote no GGUF of .*\| no such architecture"):
        peer.decoding("peer", cell(peer.ways.plain), prompts=PROMPTS, seed=0)
    assert list((tmp_path / "cache" / "paceline" / "peers" / "gguf").iterdir()) == []


def test_a_server_that_does_not_start_is_quoted(tmp_path, setting):
    peer = llama(tmp_path, setting)
    executable(tmp_path / "llama" / "build" / "bin" / "llama-server", "raise SystemExit('bad magic')")
    with pytest.raises(DecodingFailed, match=r"(?s)it did not start; it ended with exit code 1.*bad magic"):
        peer.decoding("peer", cell(peer.ways.plain), prompts=PROMPTS, seed=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys; print('no torch', file=sys.stderr)", "it died; it ended with exit code 0\n  | no torch"),
        ("print('hello')", "its answer is no JSON: b'hello'"),
        ("import time; time.sleep(60)", "no answer for 0.2 seconds"),
    ],
)
def test_answers_that_are_none(tmp_path, text, message):
    program = Answering("it", [str(executable(tmp_path / "it", text))], environment={})
    with pytest.raises(DecodingFailed) as caught:
        program.answer(patience=0.2 if "sleep" in text else 20)
    program.close()
    assert message in str(caught.value) and program.has_ended


@pytest.mark.slow
@pytest.mark.parametrize("state", ["stopped", "awake"])
def test_a_program_does_not_outlive_us(tmp_path, state):
    """Its owner is killed without a chance to tidy up."""
    sleeper = executable(tmp_path / "sleeper", "import os, time; print(os.getpid(), flush=True); time.sleep(100)")
    turn = "with program.awake(): pass" if state == "stopped" else ""
    owner = dedent(f"""
        import os, pathlib, time
        from paceline.bench.peers.process import Process
        program = Process("sleeper", [{str(sleeper)!r}], environment={{}})
        while not os.fstat(program._words.fileno()).st_size: time.sleep(0.01)
        {turn}
        print(os.pread(program._words.fileno(), 99, 0).decode(), flush=True)
        os.kill(os.getpid(), 9)
    """)
    pid = int(subprocess.run([sys.executable, "-c", owner], capture_output=True, text=True).stdout)
    until(lambda: has_ended(pid))


def has_ended(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_what_is_not_there_is_missing_with_the_way_to_it(tmp_path, setting):
    broken = executable(tmp_path / "broken", "raise SystemExit(1)")
    bare = executable(tmp_path / "bare", 'print(\'{"version": null, "preload": []}\')')
    llama_cpp(tmp_path / "llama")
    (tmp_path / "llama" / "convert_hf_to_gguf.py").unlink()
    cuda, odd = replace(setting, device=torch.device("cuda")), replace(setting, dtype=torch.float64)
    for found, message in (
        (vllm_module.find(None, setting), "give --vllm PYTHON, or set PACELINE_VLLM_PYTHON"),
        (vllm_module.find(tmp_path / "none", setting), "is no Python that runs"),
        (vllm_module.find(broken, setting), "is no Python that runs"),
        (vllm_module.find(bare, setting), "has no vLLM; install it as"),
        (vllm_module.find(None, cuda), "give --device cpu"),
        (vllm_module.find(None, odd), "it knows no torch.float64"),
        (llama_module.find(None, setting), "give --llama-cpp DIR, or set PACELINE_LLAMA_CPP"),
        (llama_module.find(tmp_path, setting), "llama-server; build it as"),
        (llama_module.find(tmp_path / "llama", setting), "convert_hf_to_gguf.py; build it as"),
        (llama_module.find(tmp_path / "llama", odd), "no torch.float64"),
        (llama_module.find(None, cuda), "give --device cpu"),
    ):
        assert isinstance(found, PeerUnavailable) and message in found.reason


def test_peers_are_found_by_name(tmp_path, setting):
    places = dict(vllm_python=vllm_python(tmp_path / "vllm"), llama_cpp_folder=None)
    found = find_peers(PEERS, setting, **places)
    assert [peer.name for peer in found] == ["transformers", "vllm", "vllm-suffix", "llama.cpp"]
    assert [isinstance(peer, PeerUnavailable) for peer in found] == [False, False, True, True]
    assert "has no arctic-inference, which vLLM's method suffix needs; install it as" in found[2].reason
    assert found[1].version == "0.0.1" and llama(tmp_path, setting).version == "17 (abc)"
    places["vllm_python"] = vllm_python(tmp_path / "whole", arctic="0.3.0")
    (whole,) = find_peers(["vllm"], setting, **places)
    assert whole.version == "0.0.1 with arctic-inference 0.3.0"
    with pytest.raises(ValueError, match="unknown peer sglang; known: transformers, vllm"):
        find_peers(["sglang"], setting, **places)


def test_without_a_draft_nobody_drafts_with_one(tmp_path, setting):
    alone = replace(setting, draft=None)
    assert vllm(tmp_path, alone).ways.drafting == ("vllm-lookup",)
    assert llama(tmp_path, alone).ways.drafting == ("llama.cpp-lookup",)


def test_threads_have_a_core_each(tmp_path, setting):
    assert first_cores((3, 1, 2), 2) == (1, 2)
    with pytest.raises(ValueError, match=r"4 threads on 2 cores.*give --threads 2"):
        vllm(tmp_path, replace(setting, num_threads=4))


def test_who_took_part_is_kept_and_versions_do_not_mix(tmp_path, setting):
    raw = RawFile(tmp_path / "raw.jsonl")
    gone = PeerUnavailable(name="vllm", reason="install it")
    keep_peers([gone], raw=raw, run="a")
    keep_peers([gone], raw=raw, run="a")
    assert len(raw.records) == 1 and str(missing_of(raw.records)[0]) == "vllm is missing: install it"
    there = vllm(tmp_path, setting)
    keep_peers([there], raw=raw, run="a")
    assert missing_of(raw.records) == [] and [str(line) for line in peers_of(raw.records)] == ["vllm 0.0.1"]
    keep_peers([gone], raw=raw, run="a")
    newer = vllm_module.find(vllm_python(tmp_path / "newer", version="0.0.2"), setting)
    with pytest.raises(ValueError, match=r"holds figures of vllm 0\.0\.1, and here is 0\.0\.2; give another --output"):
        keep_peers([newer], raw=raw, run="a")
    keep_peers([newer], raw=raw, run="b")
    keep_peers([newer, PeerUnavailable(name="vllm-suffix", reason="install it")], raw=raw, run="b")
    assert [line.name for line in missing_of(raw.records)] == ["vllm-suffix"]
    raw.append({"kind": "cell", "run": "c", "cell": {"drafter": "vllm-suffix"}})
    assert missing_of(raw.records) == []
