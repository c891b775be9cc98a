"""Models whose attention window is shorter than their context: sequences end with the window by default."""

import re
from functools import cache

import pytest
import torch

from paceline.api import Engine, SamplingParams, generate, load, perplexity, score
from paceline.api.session import Session
from paceline.models.adapter.adapt import adapt
from tests import tiny
from tests.api.engines import bare, greedy, naive
from tests.models.layouts import shaken

WINDOW, CONTEXT = 40, 128
PROMPT = [3, 1, 4, 1, 5]
BACKENDS = ("native", "hf")


@cache
def phi():
    """As Phi-3-mini-4k: a window of about half the context."""
    model = shaken(tiny.causal("phi3", sliding_window=WINDOW))
    assert model.config.max_position_embeddings == CONTEXT
    return model


@cache
def target(backend):
    return bare(tiny.native(phi()) if backend == "native" else adapt(phi()))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("drafter", "count", "longest"),
    [(None, 5, WINDOW - 1), ("ngram", 5, WINDOW - 6), ("ngram", 1, WINDOW - 2), ("itself", 4, WINDOW - 5)],
)
def test_default_max_length_is_the_window_minus_the_draft(backend, drafter, count, longest):
    loaded = target(backend)
    engine = Engine(loaded, drafter=loaded if drafter == "itself" else drafter, num_draft_tokens=count, batch_size=2)
    assert engine.decoder.batch.max_length == longest
    params = greedy(max_tokens=longest - len(PROMPT), ignore_eos=True)
    (result,) = engine.generate(PROMPT, params)
    assert len(result.prompt_tokens) + len(result.token_ids) == longest
    assert list(result.token_ids) == naive(PROMPT, params, 0, model=phi())


@pytest.mark.parametrize("backend", BACKENDS)
def test_max_tokens_none_fills_the_window(backend):
    unlimited = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    (plain,) = generate(target(backend), PROMPT, unlimited)
    (drafted,) = generate(target(backend), PROMPT, unlimited, drafter="ngram", num_draft_tokens=3)
    assert len(plain.token_ids) == WINDOW - 1 - len(PROMPT)
    assert drafted.token_ids == plain.token_ids[: WINDOW - 4 - len(PROMPT)]
    assert plain.finish_reason == drafted.finish_reason == "length"
    session = Session(target(backend))
    assert session.send(PROMPT, unlimited).token_ids == plain.token_ids


@pytest.mark.parametrize("backend", BACKENDS)
def test_max_length_beyond_the_window_is_refused_with_the_way_out(backend):
    message = rf"{WINDOW + 1}.*{WINDOW}.*lower max_tokens, max_length or num_draft_tokens"
    with pytest.raises(ValueError, match=message):
        Engine(target(backend), max_length=WINDOW)
    with pytest.raises(ValueError, match=message):
        generate(target(backend), PROMPT, greedy(max_tokens=WINDOW - len(PROMPT)))
    assert Engine(target(backend), max_length=WINDOW - 1).decoder.batch.max_length == WINDOW - 1


def test_drafts_longer_than_the_window_are_refused():
    message = re.escape(f"drafts of {WINDOW} tokens, their root included, leave no room for a sequence in the {WINDOW}")
    with pytest.raises(ValueError, match=f"{message} that tiny attends to: lower num_draft_tokens"):
        Engine(target("native"), drafter="ngram", num_draft_tokens=WINDOW - 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_long_texts_are_scored_in_windows(backend):
    text = torch.randint(tiny.VOCAB, (100,), generator=torch.Generator().manual_seed(1)).tolist()
    found = perplexity(target(backend), text, stride=20)
    logs = []
    for begin, first, end in ((0, 1, 40), (20, 40, 60), (40, 60, 80), (60, 80, 100)):
        (one,) = score(target(backend), [text[begin:first]], [text[first:end]])
        logs.extend(one.logprobs)
    assert found.num_tokens == 99
    torch.testing.assert_close(found.texts[0].total, sum(logs), rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match=f"41 tokens in all are more than the context of {WINDOW}"):
        score(target(backend), [text[:40]], [text[40:41]])


def test_loaded_transformers_model_keeps_its_window():
    assert load(phi(), backend="hf").lm.max_slots == load(phi()).lm.max_slots == WINDOW
