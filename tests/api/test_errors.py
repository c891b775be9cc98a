"""Invalid calls are refused before any work; a request that fails does not affect the others."""

import logging
import shutil
import sys
from dataclasses import replace

import pytest

from paceline.api import Engine, Interrupted, SamplingParams, embedded_pair, generate, load, stream
from paceline.cli import run
from paceline.core.plan import Fixed
from paceline.core.request import Request
from paceline.core.sampling import Sampling
from paceline.core.tree import Draw
from paceline.drafters.base import StatelessDrafter
from paceline.engine import memory
from paceline.engine.memory import row_bytes
from tests import tiny
from tests.api.checkpoints import CONTEXT, VOCAB, config_of, pair, without_tokenizer
from tests.api.engines import LONG, bare, engine, greedy, naive
from tests.api.scripted import DRAFTS, draft, script
from tests.api.scripted import target as scripted
from tests.engine.wrapped import Breaking

POISON = 59  # a token that only the failing prompts contain


@pytest.fixture(scope="module")
def target():
    return load(pair().target, device="cpu")


class Sharing(StatelessDrafter):
    """A drafter whose draw the verifier "rejection" does not support."""

    draws = frozenset({Draw.SHARED})
    origins = ("sharing",)

    def propose(self, batch, plan):
        raise NotImplementedError


FOUR = SamplingParams(max_tokens=4)
SHARING = "the verifier 'rejection' does not fit the drafter 'Sharing': Sharing drafts tokens that are sampled"
CALLS = [
    (dict(prompts=[]), "no prompts: give at least one"),
    (dict(prompts=""), "prompt 0: empty prompt: give at least one token"),
    (dict(prompts=[[5], []]), "prompt 1: empty prompt: give at least one token"),
    (dict(prompts=5), "5 is not a prompt: give a text"),
    (dict(prompts=["x", 2.5]), "prompt 1: 2.5 is not a prompt: give a text, a list of token ids"),
    (dict(prompts=[[5], [5, "x"]]), r"prompt 1: \[5, 'x'\] is not a prompt"),
    (dict(prompts=["x", [{"role": "user", "content": "x"}]]), "prompt 1: .* has no chat template"),
    (
        dict(prompts=[[5], [5] * CONTEXT]),
        f"prompt 1: prompt of {CONTEXT} tokens and max_tokens=4 exceed the limit of {CONTEXT} tokens; shorten",
    ),
    (
        dict(prompts=[[5], [5] * CONTEXT], params=SamplingParams(max_tokens=None)),
        f"prompt 1: prompt of {CONTEXT} tokens and max_tokens=1 exceed the limit of {CONTEXT} tokens; shorten",
    ),
    (dict(prompts=[[5], [5, 9999]]), f"prompt 1: token ids 5..9999 leave the target's vocabulary of {VOCAB}"),
    (dict(prompts=[[5], [-1, 6]]), "prompt 1: token ids -1..6 leave the target's vocabulary"),
    (dict(params=[FOUR] * 3), "3 params for 1 prompts: give one for all, or one for each"),
    (dict(params={"max_tokens": 4}), r"params=\{'max_tokens': 4\}: give SamplingParams\(...\)"),
    (dict(params=[{"max_tokens": 4}]), r"params=\[\{.*\}\]: give SamplingParams\(...\), one for"),
    (dict(params=4), r"params=4: give SamplingParams\(...\)"),
    (
        dict(prompts=["x", "y"], params=[FOUR, replace(FOUR, stop_token_ids=range(65))]),
        "prompt 1: 65 stop tokens: at most 64 are supported, the model's own among them; give fewer",
    ),
    (dict(params=replace(FOUR, stop_token_ids=range(1, 65))), "prompt 0: 65 stop tokens: at most 64 are supported"),
    (
        dict(params=SamplingParams(max_tokens=None, min_tokens=CONTEXT)),
        f"prompt 0: min_tokens={CONTEXT}: give a count from 0 to max_tokens={CONTEXT - 1}",
    ),
    (
        dict(prompts=[[5, 6], [5] * CONTEXT], params=replace(FOUR, prompt_logprobs=1)),
        f"prompt 1: prompt of {CONTEXT} tokens and max_tokens=4 exceed",
    ),
    (dict(num_draft_tokens=-1), "num_draft_tokens=-1: give 0"),
    (dict(drafter="eagle9"), "unknown drafter 'eagle9'.*known names: .*model, mtp, .*none"),
    (dict(drafter="model"), "drafter 'model' needs a draft model: give its directory"),
    (dict(verifier="typical"), "unknown verifier 'typical'; known: block, coupled"),
    (
        dict(drafter=Sharing(), verifier="rejection"),
        SHARING + ".*; give another drafter, or one of the verifiers coupled",
    ),
    (dict(batch_size=0), "batch_size=0: give at least 1"),
    (dict(batch_size=-2), "batch_size=-2: give at least 1"),
]


@pytest.mark.parametrize(("options", "message"), CALLS)
def test_invalid_call_is_refused_before_any_work(target, options, message, monkeypatch):
    monkeypatch.setattr(type(target.lm), "forward", None)  # any work would call it
    with pytest.raises(ValueError, match=message):
        generate(target, **{"prompts": "x", "params": FOUR, **options})


ENGINES = [
    (dict(max_length=CONTEXT + 1), f"max_length={CONTEXT + 1} is beyond the target's context of {CONTEXT} tokens"),
    (dict(max_length=0), "max_length=0: give at least 2"),
    (dict(max_length=-7), "max_length=-7: give at least 2"),
    (dict(batch_size=0), "batch_size=0: give at least 1"),
    (dict(num_draft_tokens=-1), "num_draft_tokens=-1: give 0"),
    (dict(drafter=Sharing(), verifier="rejection"), SHARING),
]


@pytest.mark.parametrize(("options", "message"), ENGINES)
def test_invalid_engine_is_refused_before_any_work(target, options, message, monkeypatch):
    monkeypatch.setattr(type(target.lm), "new_cache", None)
    with pytest.raises(ValueError, match=message):
        Engine(target, **options)


DRAFTERS = [
    (dict(drafter="ngarm"), "unknown drafter 'ngarm': no such directory; known names: "),
    (dict(drafter=["ngram", "no/such/place/x"]), "no such model directory: no/such/place/x"),
    (dict(drafter="ngram:max_ngarm=3"), "drafter 'ngram' has no option 'max_ngarm'"),
    (dict(drafter=3), "a drafter of type int; known names: "),
    (dict(drafter={"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 0}), "prompt_lookup_min=0"),
]


@pytest.mark.parametrize(("options", "message"), DRAFTERS)
@pytest.mark.parametrize("call", [generate, Engine])
def test_invalid_drafters_are_refused_before_the_target_is_loaded(call, options, message, monkeypatch):
    monkeypatch.setattr("paceline.api.targets.load", None)
    given = () if call is Engine else ("x",)
    with pytest.raises(ValueError, match=message):
        call(str(pair().target), *given, **options)


def test_texts_for_a_model_without_tokenizer_are_refused_before_it_is_loaded(monkeypatch, tmp_path, capsys):
    folder = without_tokenizer(tmp_path / "bare")
    monkeypatch.setattr("paceline.api.targets.load", None)
    monkeypatch.setattr("paceline.models.loading.load", None)
    with pytest.raises(ValueError, match="bare has no tokenizer: give the prompt as token ids"):
        generate(str(folder), "x")
    assert run(["generate", "--model", str(folder), "x"]) == 2
    assert "bare has no tokenizer" in capsys.readouterr().err


SUBMISSIONS = [
    (
        dict(prompts=[[5], [5] * 20], params=FOUR),
        "prompt 1: prompt of 20 tokens and max_tokens=4 exceed the limit of 22 tokens; shorten the prompt or lower",
    ),
    (dict(prompts=[[5], "x"]), "prompt 1: tiny has no tokenizer: give the prompt as token ids"),
    (dict(prompts=[[5], [{"role": "user", "content": "x"}]]), "prompt 1: tiny has no tokenizer"),
    (
        dict(prompts=[[5], [6]], params=[FOUR, replace(FOUR, stop="end")]),
        r"prompt 1: stop=\['end'\]: tiny has no tokenizer to find it with; give stop_token_ids",
    ),
    (dict(prompts=[[5], [6]], params=[FOUR]), "1 params for 2 prompts"),
]


@pytest.mark.parametrize(("options", "message"), SUBMISSIONS)
def test_invalid_submission_leaves_nothing_in_the_queue(options, message, monkeypatch):
    """Prompts before the invalid one are not queued either."""
    running = engine(batch_size=2, max_length=22)
    with monkeypatch.context() as patch:
        patch.setattr(type(tiny.target()[1]), "forward", None)
        with pytest.raises(ValueError, match=message):
            running.submit(**options)
        running.advance()
    [result] = running.generate([[5]], greedy(max_tokens=4))
    assert list(result.token_ids) == naive([5], greedy(max_tokens=4), 0)


def test_rows_beyond_free_memory_are_refused_with_the_batch_size_that_fits(target, monkeypatch):
    drafter = draft(DRAFTS["all right"])
    each = row_bytes(target.lm, drafter, max_length=100, num_draft_tokens=5)
    monkeypatch.setattr(memory, "free_memory", lambda device: 3 * each)
    message = r"weights 0.00 GiB \(loaded\) \+ cache .* for 4 rows of 100 tokens exceed .*: lower batch_size to 3"
    with monkeypatch.context() as patch:
        patch.setattr(type(target.lm), "new_cache", None)
        with pytest.raises(ValueError, match=message):
            Engine(target, drafter=drafter, num_draft_tokens=5, batch_size=4, max_length=100)
    fitting = Engine(target, drafter=drafter, num_draft_tokens=5, batch_size=3, max_length=100)
    assert fitting.decoder.batch.rows == 3


def test_default_batch_size_fills_half_of_the_free_memory(target, monkeypatch):
    each = row_bytes(target.lm, engine().decoder.drafter, max_length=5, num_draft_tokens=5)
    for free, rows in ((2 * each, 1), (8 * each, 4), (1000 * each, 7)):
        monkeypatch.setattr(memory, "free_memory", lambda device, free=free: free)
        made = stream(target, [[5]] * 7, FOUR)
        assert made._engine.decoder.batch.rows == rows


# One request fails.


@pytest.mark.parametrize("kind", DRAFTS)
def test_criterion_that_raises_ends_only_its_own_request(kind, caplog):
    def criterion(tokens):
        if len(tokens) == 6 and tokens[-1] == script()[6] and not calls.append(len(tokens)) and len(calls) == 2:
            raise RuntimeError("out of ink")
        return False

    calls = []
    running = Engine(scripted(), drafter=draft(DRAFTS[kind]), num_draft_tokens=4, batch_size=3, max_length=64)
    made = running.submit([list(script()[:1])] * 3, greedy(max_tokens=12), criterion=criterion)
    with caplog.at_level(logging.WARNING, logger="paceline"):
        pieces = list(made)
    results = made.results()
    assert [result.error for result in results] == [None, "out of ink", None]
    assert [result.finish_reason for result in results] == ["length", "error", "length"]
    assert [record.message for record in caplog.records] == ["prompt 1 failed: out of ink"]
    failed = results[1]
    assert failed.token_ids == script()[1:7] and failed.stats.summary.emitted == len(failed.source) == 6
    own = [piece for piece in pieces if piece.index == 1]
    assert tuple(piece.token for piece in own) == failed.token_ids and "".join(p.text for p in own) == failed.text
    assert own[-1].finish_reason == "error"
    assert all(result.token_ids == script()[1:13] for result in (results[0], results[2]))
    [again] = running.generate([list(script()[:1])], greedy(max_tokens=20))
    assert again.token_ids == script()[1:21], "its row serves again"


def test_logs_number_prompts_across_submissions_or_use_their_name(caplog):
    def criterion(tokens):
        raise RuntimeError("out of ink")

    running = Engine(scripted(), batch_size=2, max_length=64)
    prompt, params = list(script()[:1]), greedy(max_tokens=4)
    with caplog.at_level(logging.WARNING, logger="paceline"):
        for name in (None, None, "line 7"):
            running.submit(prompt, params, criterion=criterion, name=name).drain()
        running.submit([prompt, prompt], params).drain()
        results = running.submit([prompt] * 2, params, criterion=criterion).drain()
    assert [result.index for result in results] == [0, 1]
    names = [record.message.removesuffix(" failed: out of ink") for record in caplog.records]
    assert names == ["prompt 0", "prompt 1", "line 7", "prompt 5", "prompt 6"]


@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_failing_prompt_fails_alone_and_its_row_is_reused(drafter, rows, caplog):
    broken = Breaking(tiny.target()[1], RuntimeError("unreadable"), poison=POISON)
    running = engine(drafter, target=bare(broken), batch_size=rows, num_draft_tokens=Fixed(3))
    prompts = [LONG, [*LONG, POISON, 1], [5], [*LONG, 2, 3], [POISON, 3]]
    with caplog.at_level(logging.WARNING, logger="paceline"):
        results = running.generate(prompts, greedy(max_tokens=9))
    assert [result.error for result in results] == [None, "unreadable", None, None, "unreadable"]
    messages = sorted(record.message for record in caplog.records)
    assert messages == ["prompt 1 failed: unreadable", "prompt 4 failed: unreadable"]
    again = running.generate(prompts[:1] * 5, greedy(max_tokens=5))
    for result in results:
        wanted = [] if result.error else naive(prompts[result.index], greedy(max_tokens=9), 0)
        assert list(result.token_ids) == wanted and result.stats.steps <= len(wanted)
        assert result.finish_reason == ("error" if result.error else "length")
    assert {tuple(result.token_ids) for result in again} == {tuple(naive(LONG, greedy(max_tokens=5), 0))}
    assert running.runner.drafter_error is None


# Ctrl-C.


@pytest.mark.parametrize("drafter", ["none", "model"])
@pytest.mark.parametrize("at", [1, 2, 4, 9])
def test_interrupt_carries_partial_results(drafter, at):
    """In the first admission (call 1), in a step, and in a later admission."""
    target = bare(Breaking(tiny.target()[1], KeyboardInterrupt(), at=at))
    running = engine(drafter, target=target, batch_size=2, num_draft_tokens=Fixed(3))
    prompts = [LONG, [8, 8, 8], [9, 7, 1]]
    with pytest.raises(Interrupted, match=r"interrupted with [0-9]+ tokens generated") as caught:
        running.generate(prompts, greedy(max_tokens=9))
    results = caught.value.results
    assert isinstance(caught.value, KeyboardInterrupt) and [result.index for result in results] == [0, 1, 2]
    assert sum(len(result.token_ids) for result in results) == sum(result.stats.summary.emitted for result in results)
    for result, prompt in zip(results, prompts, strict=True):
        wanted = naive(prompt, greedy(max_tokens=9), 0)
        assert list(result.token_ids) == wanted[: len(result.token_ids)]
        assert result.finish_reason == ("length" if len(result.token_ids) == 9 else "cancelled")
    assert any(result.finish_reason == "cancelled" for result in results)
    again = running.generate(prompts, greedy(max_tokens=9))
    assert [list(result.token_ids) for result in again] == [naive(p, greedy(max_tokens=9), 0) for p in prompts]


def test_interrupted_generate_carries_partial_results(target, monkeypatch):
    broken = replace(target, lm=Breaking(target.lm, KeyboardInterrupt(), at=5))
    with pytest.raises(Interrupted) as caught:
        generate(broken, ["x", "def add("], greedy(max_tokens=12, ignore_eos=True))
    whole = generate(target, ["x", "def add("], greedy(max_tokens=12, ignore_eos=True))
    for part, result in zip(caught.value.results, whole, strict=True):
        assert part.finish_reason == "cancelled" and 0 < len(part.token_ids) < 12
        assert part.token_ids == result.token_ids[: len(part.token_ids)]
        assert result.text.startswith(part.text.rstrip("\ufffd"))


# Models.


def broken(kind, folder):
    """A copy of the target with one defect."""
    shutil.copytree(pair().target, folder)
    if kind == "no config":
        (folder / "config.json").unlink()
    elif kind == "config is no JSON":
        (folder / "config.json").write_text("{")
    elif kind == "architecture":
        config_of(folder, model_type="mamba")
    elif kind == "no weights":
        (folder / "model.safetensors").unlink()
    elif kind == "weights are no safetensors":
        (folder / "model.safetensors").write_bytes(b"nothing")
    elif kind == "tokenizer":
        (folder / "tokenizer.json").write_text("[]")
    return folder


DIRECTORIES = {
    "no config": "not a model: .* has no config.json",
    "config is no JSON": "not a model: .* is not JSON",
    "architecture": "unsupported architecture 'mamba' in .*: its recurrent or convolutional state",
    "no weights": "holds no weights, neither model.safetensors nor .*; fetch them, or convert",
    "weights are no safetensors": "is not a safetensors file",
    "tokenizer": "tokenizer",
}


@pytest.mark.parametrize("kind", DIRECTORIES)
def test_invalid_model_directory_is_refused_with_the_reason(kind, tmp_path):
    with pytest.raises(ValueError, match=DIRECTORIES[kind]):
        load(broken(kind, tmp_path / "model"))


def test_missing_demo_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "paceline_demo", None)
    with pytest.raises(ValueError, match=r"pip install 'paceline\[demo\]'"):
        embedded_pair()


def test_scheduler_refuses_requests_that_the_decoder_cannot_run():
    running = engine(max_length=22)
    with pytest.raises(ValueError, match="prompt of 20 tokens and max_tokens=4 exceed the limit of 22 tokens"):
        running.scheduler.submit(Request(tokens=[5] * 20, max_tokens=4, sampling=Sampling()))
    assert running.scheduler.idle
