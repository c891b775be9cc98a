"""``generate`` and ``stream``: reference tokens with every drafter, seeds, and streams."""

import gc
import logging
import subprocess
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from paceline.api import Engine, Loaded, SamplingParams, Source, generate, load, prompt_logprobs, stream, total
from paceline.core.noise import split_seed
from paceline.core.plan import Fixed
from paceline.engine.readers import AsyncReader, SyncReader
from paceline.engine.scheduler import PREFILL_TOKENS
from tests import harness, reference, tiny
from tests.api.checkpoints import CONTEXT, pair, without_tokenizer
from tests.api.engines import bare, engine, greedy, naive, read_by
from tests.tables import TableLM, deviation, random_table

pytestmark = pytest.mark.one_in(11)

PROMPTS = ["def add(first,", "x", "for item in items:\n    print(item)\nfor item in"]
PARAMS = {
    "greedy": greedy(max_tokens=20, seed=5, ignore_eos=True),
    "sampled": SamplingParams(max_tokens=20, seed=11, ignore_eos=True),
    "filtered": SamplingParams(temperature=0.7, top_k=20, top_p=0.9, max_tokens=20, seed=3, ignore_eos=True),
}
every_drafter = pytest.mark.parametrize("name", ["none", "ngram", "model"])


@pytest.fixture(scope="module")
def target():
    return load(pair().target, device="cpu")


@cache
def transformers_model():
    return AutoModelForCausalLM.from_pretrained(pair().target, dtype=torch.float64)


def drafter(name):
    return pair().draft if name == "model" else name


@every_drafter
@pytest.mark.parametrize("kind", PARAMS)
def test_every_drafter_gives_the_reference_tokens(target, name, kind):
    params = PARAMS[kind]
    results = generate(target, PROMPTS, params, drafter=drafter(name), num_draft_tokens=5)
    for index, (prompt, result) in enumerate(zip(PROMPTS, results, strict=True)):
        assert (result.index, result.sample, result.seed) == (index, 0, split_seed(params.seed, index))
        assert result.prompt_tokens == tuple(target.tokenizer.encode(prompt))
        assert list(result.token_ids) == reference.decode(
            transformers_model(),
            list(result.prompt_tokens),
            max_tokens=20,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            seed=result.seed,
        )
        whole = target.tokenizer.decode([*result.prompt_tokens, *result.token_ids])
        assert result.text == whole[len(prompt) :]
        assert set(result.origin) <= {None, name}
    if name == "model":
        assert total(results).acceptance_rate > 0.3
    if name == "none":
        assert total(results).mean_acceptance_length == 1 and set(results[0].source) == {Source.PLAIN}


@every_drafter
def test_batched_output_matches_single_output(target, name):
    options = [SamplingParams(seed=seed) for seed in (5, 6, 7)]
    together = generate(target, PROMPTS, options, drafter=drafter(name), num_draft_tokens=5)
    alone = [
        generate(target, prompt, option, drafter=drafter(name), num_draft_tokens=5)[0]
        for prompt, option in zip(PROMPTS, options, strict=True)
    ]
    for field in ("tokens", "source", "origin", "text", "seed", "finish_reason"):
        assert [getattr(one, field) for one in together] == [getattr(one, field) for one in alone]


@pytest.mark.parametrize("rows", [1, 2, 5, 16])
def test_batch_size_changes_no_token(target, rows):
    params = SamplingParams(n=2, seed=8)
    assert [(r.index, r.sample, r.token_ids) for r in generate(target, PROMPTS, params, batch_size=rows)] == [
        (r.index, r.sample, r.token_ids) for r in generate(target, PROMPTS, params)
    ]


def test_defaults_are_those_of_vllm(target):
    [result] = generate(replace(target, eos=()), "x")  # a fresh seed may end the text at any place
    assert len(result.token_ids) == 16 and result.finish_reason == "length" and result.logprobs is None
    assert generate(target, "x")[0].token_ids != result.token_ids, "fresh noise every call"


def test_max_tokens_none_fills_the_context(target):
    prompt = [5] * (CONTEXT - 9)
    [result] = generate(
        target, [prompt], greedy(max_tokens=None, ignore_eos=True), drafter=pair().draft, num_draft_tokens=5
    )
    assert len(result.token_ids) == 9 and result.finish_reason == "length"
    [short] = Engine(target, max_length=24, batch_size=1).generate([[5] * 10], greedy(max_tokens=None, ignore_eos=True))
    assert len(short.token_ids) == 14


@every_drafter
def test_end_of_text_stops_unless_ignored(target, name):
    long = generate(target, "x", greedy(max_tokens=20, ignore_eos=True), drafter=drafter(name), num_draft_tokens=5)[0]
    end = next(token for at, token in enumerate(long.token_ids) if at >= 6 and token not in long.token_ids[:at])
    ending = replace(target, eos=(end,))
    stopped = generate(ending, "x", greedy(max_tokens=20), drafter=drafter(name), num_draft_tokens=5)[0]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", None)
    assert stopped.token_ids == long.token_ids[: long.token_ids.index(end) + 1]
    ignored = generate(ending, "x", greedy(max_tokens=20, ignore_eos=True), drafter=drafter(name), num_draft_tokens=5)[
        0
    ]
    assert ignored.token_ids == long.token_ids and ignored.finish_reason == "length"


def test_token_prompts_need_no_tokenizer(tmp_path, target):
    bare_target = load(without_tokenizer(tmp_path / "bare"), device="cpu")
    [result] = generate(bare_target, [[5, 6, 7]], SamplingParams(max_tokens=5))
    assert result.text is None and len(result.token_ids) == 5
    params = SamplingParams(max_tokens=5, seed=2)
    assert generate(target, [5, 6], params)[0].token_ids == generate(target, [[5, 6]], params)[0].token_ids


def test_verifier_with_its_own_noise_is_reproducible(target):
    options = dict(drafter=pair().draft, verifier="rejection", num_draft_tokens=5)
    first, again, other = (
        generate(target, PROMPTS, SamplingParams(max_tokens=20, seed=seed, ignore_eos=True), **options)
        for seed in (4, 4, 5)
    )
    assert [result.token_ids for result in first] == [result.token_ids for result in again]
    assert [result.token_ids for result in first] != [result.token_ids for result in other]
    assert total(first).acceptance_rate > 0.3


def test_speculative_config_sets_the_draft_length(target):
    config = {"method": "ngram", "num_speculative_tokens": 2}
    [result] = generate(target, [[5, 6] * 9], greedy(max_tokens=9), drafter=config)
    assert len(result.stats.drafted) == 2


# Seeds.


def seeds(prompts, params):
    """The seeds of a call's results, without running it."""
    return [result.seed for result in engine(batch_size=1).submit(prompts, params).results()]


def test_one_seed_is_split_over_prompts_and_samples():
    found = seeds([[1], [2], [3]], SamplingParams(n=4, seed=77))
    assert found == [split_seed(77, index) for index in range(12)]
    assert len(set(found)) == 12 and found[0] == 77


def test_seed_of_one_prompt_is_split_over_its_samples():
    params = [SamplingParams(n=3, seed=77), SamplingParams(seed=5), SamplingParams(n=2, seed=9)]
    found = seeds([[1], [2], [3]], params)
    assert found == [77, split_seed(77, 1), split_seed(77, 2), 5, 9, split_seed(9, 1)]


FRESH = {
    "one for all": SamplingParams(n=5),
    "one for each": [SamplingParams(n=n) for n in (3, 1, 6, 2)],
    "some of their own": [
        SamplingParams(n=3, seed=1),
        SamplingParams(n=4),
        SamplingParams(n=2, seed=2),
        SamplingParams(n=5),
    ],
}


@pytest.mark.parametrize("case", FRESH)
def test_outputs_without_a_seed_never_share_noise(case):
    prompts = [[1]] * 4
    found = [seeds(prompts, FRESH[case]) for _ in range(2)]
    given = [1, split_seed(1, 1), split_seed(1, 2), 2, split_seed(2, 1)] if case == "some of their own" else []
    fresh = [seed for call in found for seed in call if seed not in given]
    assert len(fresh) == len(set(fresh)) == 2 * (len(found[0]) - len(given))
    assert all(len(set(call)) == len(call) for call in found)
    assert all(0 <= seed < 1 << 63 for seed in fresh)


@every_drafter
def test_identical_prompts_and_samples_give_different_outputs(name):
    results = engine(name, batch_size=4).generate([[5, 9]] * 3, SamplingParams(n=3, seed=6, max_tokens=12))
    assert len({result.token_ids for result in results}) == 9


@pytest.mark.parametrize(("drafter_name", "verifier"), harness.family_cases())
def test_seed_of_a_result_reproduces_it_alone(drafter_name, verifier):
    results = engine(drafter_name, verifier, batch_size=3).generate([[5, 9], [8]], SamplingParams(n=2, max_tokens=10))
    for result in results:
        params = SamplingParams(seed=result.seed, max_tokens=10)
        [alone] = engine(drafter_name, verifier, batch_size=1).generate([result.prompt_tokens], params)
        assert alone.token_ids == result.token_ids and alone.seed == result.seed
        if verifier == "coupled":
            assert list(result.token_ids) == naive(result.prompt_tokens, params, result.seed)


class Table(TableLM):
    slot_bytes = 16


def first_tokens(params, prompts):
    """The first token of every result, from a table LM with three tokens, and its distribution [3]."""
    table = random_table(4)
    loaded = Loaded(lm=Table(table), tokenizer=None, eos=(), name="table", dtype=torch.float64, config={})
    results = Engine(loaded, batch_size=64, max_length=8).generate([[1]] * prompts, params)
    return torch.tensor([result.token_ids[0] for result in results]), table[0, 1].softmax(-1)


INDEPENDENT = {
    "the samples of a prompt": (lambda: [SamplingParams(n=2, seed=seed, max_tokens=1) for seed in range(800)], 800),
    "the prompts of a call": (lambda: SamplingParams(seed=3, max_tokens=1), 1600),
    "samples without a seed": (lambda: SamplingParams(n=2, max_tokens=1), 800),
}


@pytest.mark.parametrize("case", INDEPENDENT)
def test_noise_is_independent_between(case, monkeypatch):
    """The joint distribution of neighbouring outputs is the product of the marginals."""
    monkeypatch.setattr("paceline.api.requests.secrets.randbits", lambda bits: 123456789)
    make, prompts = INDEPENDENT[case]
    tokens, distribution = first_tokens(make(), prompts)
    counts = torch.bincount(3 * tokens[::2] + tokens[1::2], minlength=9).double()
    assert counts.sum() == 800
    assert deviation(counts, torch.outer(distribution, distribution).flatten()) < 4
    apart = torch.bincount(3 * tokens[1:-1:2] + tokens[2::2], minlength=9).double()
    assert deviation(apart, torch.outer(distribution, distribution).flatten()) < 4


# Streams.


@every_drafter
def test_pieces_add_up_to_the_results(target, name):
    generation = stream(
        target, PROMPTS, SamplingParams(max_tokens=20, seed=3), drafter=drafter(name), num_draft_tokens=5, batch_size=2
    )
    pieces = list(generation)
    assert generation.done
    for result in generation.results():
        own = [piece for piece in pieces if piece.index == result.index]
        for field, values in (("token", result.token_ids), ("source", result.source), ("origin", result.origin)):
            assert tuple(getattr(piece, field) for piece in own) == values
        assert "".join(piece.text for piece in own) == result.text
        assert [piece.finish_reason for piece in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1].finish_reason == result.finish_reason


def test_pieces_are_returned_step_by_step(target):
    generation = stream(target, "x", greedy(max_tokens=40, ignore_eos=True), drafter=pair().draft, num_draft_tokens=5)
    steps = []
    for count, _ in enumerate(generation, start=1):
        steps.append(generation.results()[0].stats.steps)
        assert len(generation.results()[0].token_ids) >= count
    assert steps[0] == 1 and steps == sorted(steps) and steps[-1] < 40


def test_closed_stream_keeps_its_tokens(target):
    whole = generate(target, "x", greedy(max_tokens=30, ignore_eos=True))[0]
    with stream(target, "x", greedy(max_tokens=30, ignore_eos=True)) as generation:
        pieces = [next(generation) for _ in range(4)]
    [part] = generation.results()
    assert part.finish_reason == "cancelled" and part.error is None
    assert part.token_ids == whole.token_ids[:4] == tuple(piece.token for piece in pieces)
    assert whole.text.startswith(part.text.rstrip("\ufffd")) and list(generation) == [] and generation.done
    generation.close()
    assert generation.results() == [part]


def test_garbage_collected_stream_frees_its_rows():
    running = engine("model", batch_size=2)
    generation = running.submit([[5], [6], [7]], greedy(max_tokens=50))
    next(generation)
    assert bool(running.decoder.batch.active.all())
    del generation
    gc.collect()
    assert not bool(running.decoder.batch.active.any())
    assert [list(result.token_ids) for result in running.generate([[8]], greedy(max_tokens=5))] == [
        naive([8], greedy(max_tokens=5), 0)
    ]
    assert not running._open and not running.scheduler._done


def test_a_program_may_end_in_the_middle_of_a_stream():
    program = f"""
from paceline.api import Engine, load
stream = Engine(load({str(pair().target)!r}), max_length=64).submit([[5, 9]])
print(next(stream).token)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip().isdecimal() and not done.stderr


def test_streams_of_one_engine_advance_together():
    running = engine("ngram", batch_size=2)
    prompts = [[5, 9], [8], [3, 1, 4]]
    streams = [running.submit([prompt], greedy(max_tokens=9)) for prompt in prompts]
    taken = [[], [], []]
    while not all(one.done for one in streams):
        for one, own in zip(streams, taken, strict=True):
            piece = next(one, None)
            own += [piece.token] if piece is not None else []
    for one, own, prompt in zip(streams, taken, prompts, strict=True):
        own += [piece.token for piece in one]
        assert own == list(one.results()[0].token_ids) == naive(prompt, greedy(max_tokens=9), 0)


@pytest.mark.parametrize("reader", [SyncReader, AsyncReader])
@pytest.mark.parametrize("scored", [None, 0])
@pytest.mark.parametrize("drafter", ["none", "ngram", "model", "prophet"])
def test_long_prompt_does_not_stall_running_rows(drafter, scored, reader, monkeypatch):
    """The prompt is prefilled in chunks between their steps, and no output changes."""
    read_by(monkeypatch, reader)
    model = tiny.llama(1, max_position_embeddings=2048)
    target = bare(tiny.native(model))
    running = engine(drafter, target=target, batch_size=2, max_length=1700, num_draft_tokens=Fixed(3))
    prompt, gained = [(7 * at * at + at // 3) % 61 for at in range(1600)], []
    short = running.submit([[5, 9, 2]], greedy(max_tokens=60))
    running.advance()
    long = running.submit([prompt], greedy(max_tokens=3, prompt_logprobs=scored))
    while not long.results()[0].token_ids:
        before = len(short.results()[0].token_ids)
        running.advance()
        gained.append(len(short.results()[0].token_ids) - before)
    assert len(gained) >= len(prompt) // PREFILL_TOKENS and min(gained) > 0
    [result] = long.drain()
    assert list(result.token_ids) == naive(prompt, greedy(max_tokens=3), 0, model)
    assert list(short.drain()[0].token_ids) == naive([5, 9, 2], greedy(max_tokens=60), 0, model)
    if scored is not None:
        [alone] = prompt_logprobs(target, [prompt])
        np.testing.assert_allclose(result.prompt_logprobs.logprobs[1:], alone.logprobs[1:], rtol=0, atol=1e-9)


def test_results_of_a_running_stream_are_partial():
    generation = engine(batch_size=1).submit([[5], [6]], greedy(max_tokens=9))
    for _ in range(3):
        next(generation)
    first, second = generation.results()
    assert list(first.token_ids) == naive([5], greedy(max_tokens=9), 0)[:3] and second.token_ids == ()
    assert {first.finish_reason, second.finish_reason} == {"cancelled"} and not generation.done
    assert [len(result.token_ids) for result in generation.drain()] == [9, 9]


def test_successful_run_logs_nothing(caplog):
    with caplog.at_level(logging.DEBUG, logger="paceline"):
        Engine(bare(), batch_size=2, max_length=64).generate([[5], [6], [7]], greedy(max_tokens=30))
    assert not caplog.records
