"""The CPU kernel matches the eager decoder, and drafts and batches change no token in any dtype."""

from dataclasses import replace

import pytest

from paceline.api import Engine, SamplingParams, generate, load, score
from paceline.models.cpu.decoder import CpuDecoder
from tests.api.checkpoints import pair

PROMPTS = ["def add(first, second):", "for item in items:", "\n    return", "class"]
LONG = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)
SAMPLED = [replace(LONG, temperature=0.9, top_p=0.9, seed=seed) for seed in range(4)]


def tokens(target, params, **options):
    results = generate(target, PROMPTS, params, **options)
    return [result.token_ids for result in results], sum(sum(result.stats.accepted) for result in results)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("params", [LONG, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_drafts_and_batches_change_no_token_in_any_dtype(dtype, params):
    target = load(pair().target, dtype=dtype, device="cpu")
    plain, _ = tokens(target, params, batch_size=1)
    for draft, accepts in ((target, 150), (load(pair().draft, dtype=dtype, device="cpu"), 5), ("ngram", -1)):
        drafted, num_accepted = tokens(target, params, drafter=draft, num_draft_tokens=4, batch_size=3)
        assert drafted == plain
        assert num_accepted > accepts


def test_kernel_matches_eager_outputs_and_scores():
    target = load(pair().target, dtype="float64", device="cpu")
    eager = load(pair().target, dtype="float64", device="cpu", enforce_eager=True)
    assert tokens(target, LONG)[0] == tokens(eager, LONG)[0]
    for own, other in zip(score(target, PROMPTS, PROMPTS), score(eager, PROMPTS, PROMPTS), strict=True):
        assert own.logprobs == pytest.approx(other.logprobs, abs=1e-9)


def test_engines_run_the_kernel_unless_enforce_eager():
    target = load(pair().target, device="cpu")
    engine = Engine(target, drafter=pair().draft, max_length=32)
    assert isinstance(engine.decoder.target.unguided, CpuDecoder)
    assert isinstance(engine.decoder.drafter.lm, CpuDecoder)
    eager = replace(target, enforce_eager=True)
    engine = Engine(eager, drafter=pair().draft, max_length=32)
    assert engine.decoder.target.unguided is target.lm
    assert not isinstance(engine.decoder.drafter.lm, CpuDecoder)
