"""Decoded sequences equal those of transformers' ``generate`` and of the naive decoder, in float64."""

import copy

import pytest
import torch

from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.models.adapter.adapt import adapt
from tests import tiny
from tests.harness import expected, request, run
from tests.models.adapter_models import MODELS, adapted
from tests.models.layouts import LAYOUTS, pair, texts

pytestmark = pytest.mark.one_in(14)

PROMPTS = [texts(1, length, seed=length)[0].tolist() for length in (1, 9, 23)]
NEW = 64


def generated(model, prompt, max_tokens):
    """What ``model.generate`` appends to ``prompt``."""
    tokens = torch.tensor([prompt])
    whole = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=max_tokens, do_sample=False)
    return whole[0, len(prompt) :].tolist()


def noisy_copy(model):
    """A draft model that is right often but not always, through the adapter."""
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.02 * parameter.std(correction=0) * noise)
    return adapt(model)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_greedy_sequences_equal_generate_plain_and_drafted(layout):
    model, ours = pair(layout, torch.float64)
    prompts = PROMPTS[:2]
    wanted = [generated(model, prompt, NEW) for prompt in prompts]
    assert [len(sequence) for sequence in wanted] == [NEW, NEW] and wanted[0] != wanted[1]
    requests = [request(prompt, max_tokens=NEW) for prompt in prompts]
    drafters = (NoDrafter(), ModelDrafter(lm=tiny.noisy(ours, 0.1)), NgramDrafter())
    plain, drafted, copied = (
        run(drafter, "coupled", requests, target=ours, k=4, max_length=9 + NEW) for drafter in drafters
    )
    assert plain.texts == drafted.texts == copied.texts == wanted
    assert plain.steps == NEW and drafted.steps < NEW


def test_greedy_sequences_equal_generate_up_to_the_end_of_the_context():
    model = tiny.gpt2(n_positions=24)
    ours = tiny.native(model)
    room = 24 - len(PROMPTS[1])
    found = run(
        ModelDrafter(lm=ours), "coupled", [request(PROMPTS[1], max_tokens=room)], target=ours, k=4, max_length=24
    )
    assert found.texts == [generated(model, PROMPTS[1], room)]


@pytest.mark.each_value
@pytest.mark.parametrize("draft", ["ngram", "model"])
@pytest.mark.parametrize("name", [*LAYOUTS, *(f"adapter {name}" for name in MODELS)])
def test_ragged_rows_with_drafts_match_the_naive_decoder(name, draft):
    if name in LAYOUTS:
        model, ours = pair(name, torch.float64)
        drafting = tiny.noisy(ours, 0.03)
    else:
        model, ours = adapted(name.removeprefix("adapter "))
        drafting = noisy_copy(model)
    requests = [
        request(prompt, max_tokens=32, seed=seed, temperature=temperature)
        for seed, (prompt, temperature) in enumerate(zip(PROMPTS, (0.0, 0.8, 0.0), strict=True))
    ]
    drafter = NgramDrafter() if draft == "ngram" else ModelDrafter(lm=drafting)
    found = run(drafter, "coupled", requests, target=ours, k=4, max_length=60)
    assert found.texts == [expected(one, model) for one in requests]
    if draft == "model":
        assert found.summary.emitted / found.summary.steps > 1.2, "the draft should often be right"
