"""Log-probabilities match a full forward of the transformers model for every drafter and batch.

The target is a GPT-2, because transformers' Llama computes norms and rotary angles in float32 whatever its weights are.
"""

from functools import cache

import numpy as np
import pytest
import torch

from paceline import prompt_logprobs, score
from paceline.api import Engine, SamplingParams
from tests import harness, reference, tiny
from tests.api.engines import LONG, bare, engine, naive
from tests.api.scripted import DRAFTS, draft, script, target
from tests.engine.wrapped import Counted

PROMPTS = ([5, 9, 2], [1], [8, 8, 8, 8, 8, 8], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [60, 0], [17, 4, 33, 17, 4])
STOPS = [3, 8, 13, 21, 34, 55]
PARAMS = (
    SamplingParams(temperature=0.0, max_tokens=14, seed=1, logprobs=3),
    SamplingParams(temperature=0.7, top_k=5, max_tokens=13, seed=2, logprobs=20),
    SamplingParams(temperature=1.0, max_tokens=9, seed=3),
    SamplingParams(temperature=1.3, top_p=0.8, max_tokens=12, seed=4, logprobs=0),
    SamplingParams(temperature=0.9, min_p=0.1, top_k=30, top_p=0.95, max_tokens=11, seed=5, logprobs=7),
    SamplingParams(temperature=1.1, max_tokens=12, min_tokens=6, stop_token_ids=STOPS, seed=6, logprobs=20),
)
every_pair = pytest.mark.parametrize(("drafter", "verifier"), harness.family_cases())


@cache
def gpt2():
    """(transformers model, ours as a loaded model)"""
    model = tiny.gpt2(4)
    return model, bare(tiny.native(model))


def logits_of(model, prompt, tokens):
    """Of a full forward: the logits [V] before each of ``tokens``."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0].double().numpy()
    return logits[len(prompt) - 1 : -1]


def log_softmax(logits):
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def draft_probs_of(logits, params, at):
    """Log-probabilities that a token is sampled from, the ``at``-th of its text."""
    logits = logits.copy()
    if at < params.min_tokens:
        logits[STOPS] = -np.inf
    if params.temperature == 0:
        return np.where(np.arange(len(logits)) == logits.argmax(), 0.0, -np.inf)
    with np.errstate(divide="ignore"):
        return np.log(reference.warp(logits / params.temperature, params.top_k, params.top_p, params.min_p))


def agree(top, wanted, count):
    """``top`` is the ``count`` likeliest of ``wanted`` [V], best first, without the impossible."""
    order = [int(token) for token in np.argsort(-wanted, kind="stable")[:count] if wanted[token] > -np.inf]
    assert [token for token, _ in top] == order
    np.testing.assert_allclose([value for _, value in top], wanted[order], rtol=0, atol=1e-9)


def assert_same_scores(found, wanted):
    """The values may differ in their last bits, as those of forwards of other sizes do."""
    assert found.tokens == wanted.tokens and found.logprobs[0] is wanted.logprobs[0] is None
    np.testing.assert_allclose(found.logprobs[1:], wanted.logprobs[1:], rtol=0, atol=1e-12)
    assert found.top[0] is wanted.top[0] is None and len(found.top) == len(wanted.top)
    for ours, theirs in zip(found.top[1:], wanted.top[1:], strict=True):
        assert [token for token, _ in ours] == [token for token, _ in theirs]
        np.testing.assert_allclose([at for _, at in ours], [at for _, at in theirs], rtol=0, atol=1e-12)


@pytest.mark.one_in(6)
@every_pair
def test_raw_and_processed_logprobs_match_a_full_forward(drafter, verifier):
    model, loaded = gpt2()
    running = engine(
        drafter, verifier, target=loaded, batch_size=4
    )  # fewer than there are prompts: rows change their options
    for result, prompt, params in zip(running.generate(PROMPTS, PARAMS), PROMPTS, PARAMS, strict=True):
        if verifier == "coupled":
            assert list(result.token_ids) == naive(prompt, params, result.seed, model)
        if params.logprobs is None:
            assert result.logprobs is None
            continue
        assert len(result.logprobs) == len(result.token_ids)
        for at, (logits, token, found) in enumerate(
            zip(logits_of(model, prompt, result.token_ids), result.token_ids, result.logprobs, strict=True)
        ):
            raw, processed = log_softmax(logits), draft_probs_of(logits, params, at)
            assert abs(found.raw - raw[token]) < 1e-9
            assert abs(found.processed - processed[token]) < 1e-9
            agree(found.top_raw, raw, params.logprobs)
            agree(found.top_processed, processed, params.logprobs)


@pytest.mark.one_in(4)
@every_pair
def test_pieces_carry_the_logprobs_of_the_result(drafter, verifier):
    stream = engine(drafter, verifier, batch_size=3).submit(PROMPTS, PARAMS)
    pieces = list(stream)
    for result, params in zip(stream.results(), PARAMS, strict=True):
        own = tuple(piece.logprob for piece in pieces if piece.index == result.index)
        assert own == (result.logprobs if params.logprobs is not None else (None,) * len(result.token_ids))


@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_sum_of_raw_logprobs_is_the_score_of_the_continuation(drafter, dtype, tolerance):
    loaded = bare(tiny.native(tiny.llama(1, dtype)))
    results = engine(drafter, target=loaded, batch_size=3).generate(PROMPTS, PARAMS)
    results = [result for result in results if result.logprobs is not None]
    scores = score(loaded, [result.prompt_tokens for result in results], [result.token_ids for result in results])
    for result, one in zip(results, scores, strict=True):
        assert abs(sum(found.raw for found in result.logprobs) - one.total) < tolerance
        np.testing.assert_allclose([found.raw for found in result.logprobs], one.logprobs, rtol=0, atol=tolerance)


def test_prompt_logprobs_match_a_full_forward():
    model, loaded = gpt2()
    tops = [0, None, 4, 20, None, 4]
    params = [SamplingParams(max_tokens=3, seed=1, prompt_logprobs=top) for top in tops]
    results = engine("model", target=loaded, batch_size=3).generate(PROMPTS, params)
    for prompt, top, result in zip(PROMPTS, tops, results, strict=True):
        assert list(result.token_ids) == naive(prompt, params[0], 1, model)
        if top is None:
            assert result.prompt_logprobs is None
            continue
        found = result.prompt_logprobs
        assert_same_scores(found, prompt_logprobs(loaded, [prompt], top=top)[0])
        assert found.tokens == tuple(prompt) and found.logprobs[0] is None and found.top[0] is None
        logits = logits_of(model, prompt[:1], prompt[1:])
        for at, token in enumerate(prompt[1:], start=1):
            raw = log_softmax(logits[at - 1])
            assert abs(found.logprobs[at] - raw[token]) < 1e-9
            agree(found.top[at], raw, top)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_samples_share_prompt_logprobs(rows):
    """The prompt is scored once: the other samples copy it."""
    params = SamplingParams(n=3, prompt_logprobs=1, seed=4, max_tokens=2)
    counted = Counted(tiny.target()[1])
    results = engine("none", target=bare(counted), batch_size=rows).generate([LONG], params)
    assert counted.take() == len(LONG) - 1 + 3 * 2  # and the two steps of each sample
    assert results[0].prompt_logprobs is not None
    assert all(result.prompt_logprobs == results[0].prompt_logprobs for result in results)


@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
@pytest.mark.parametrize("where", ["running row", "own row", "other row"])
def test_prompt_logprobs_with_a_shared_prefix_match_the_prompt_alone(drafter, where):
    _, loaded = gpt2()
    running = engine(drafter, target=loaded, batch_size=1 if where == "own row" else 2)
    first = running.submit([LONG], SamplingParams(max_tokens=30, seed=1))
    if where == "running row":
        for _ in range(3):
            running.advance()
        assert not first.done
    else:
        first.drain()
    prompt = [*LONG, *first.results()[0].token_ids[:2], 44]
    [result] = running.generate([prompt], SamplingParams(max_tokens=4, seed=2, prompt_logprobs=3))
    assert_same_scores(result.prompt_logprobs, prompt_logprobs(loaded, [prompt], top=3)[0])
    assert list(result.token_ids) == naive(prompt, SamplingParams(max_tokens=4), 2, gpt2()[0])
    assert list(first.drain()[0].token_ids) == naive(LONG, SamplingParams(max_tokens=30), 1, gpt2()[0])


def test_logprobs_change_no_token_and_no_step():
    def tokens(**options):
        params = [SamplingParams(max_tokens=20, seed=seed, **options) for seed in range(6)]
        results = engine("model", batch_size=3).generate(PROMPTS, params)
        return [(result.token_ids, result.source) for result in results]

    assert tokens() == tokens(logprobs=5, prompt_logprobs=2)


@pytest.mark.parametrize("kind", DRAFTS)
def test_logprobs_end_at_the_stop_string(kind):
    """Also in the middle of a step."""
    running = Engine(target(), drafter=draft(DRAFTS[kind]), num_draft_tokens=4, batch_size=2, max_length=96)
    params = [
        SamplingParams(temperature=0.0, max_tokens=60, stop=stop, logprobs=1) for stop in ("return", "日本", "é)")
    ]
    stream = running.submit([list(script()[:1])] * 3, params)
    pieces = list(stream)
    for result in stream.results():
        assert result.finish_reason == "stop"
        assert len(result.logprobs) == len(result.token_ids) == sum(piece.index == result.index for piece in pieces)
        assert [found.top_raw[0][0] for found in result.logprobs] == list(result.token_ids)
