"""Greedy text equals transformers' ``generate``, token for token, in float64."""

import pytest
import torch

from paceline.core.plan import Fixed
from paceline.core.request import Request
from paceline.decode import Decoder
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.verifiers.coupled import Coupled
from tests import tiny
from tests.models.layouts import LAYOUTS, pair, texts

PROMPTS = [texts(1, length, seed=length)[0].tolist() for length in (1, 9)]
NEW = 64


def generated(layout, prompt):
    """What ``model.generate`` appends to ``prompt``."""
    model, _ = pair(layout, torch.float64)
    tokens = torch.tensor([prompt])
    whole = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW, do_sample=False)
    return whole[0, len(prompt) :].tolist()


def decoded(layout, drafter):
    """Texts after PROMPTS, and how many steps they took."""
    _, ours = pair(layout, torch.float64)
    decoder = Decoder(
        target=ours, drafter=drafter, verifier=Coupled(), plan=Fixed(4), rows=len(PROMPTS), max_length=9 + NEW
    )
    decoder.admit([Request(tokens=prompt, max_tokens=NEW) for prompt in PROMPTS], range(len(PROMPTS)))
    steps = 0
    while bool(decoder.batch.active.any()):
        decoder.step()
        steps += 1
    rows = zip(decoder.batch.tokens, decoder.batch.length.tolist(), PROMPTS, strict=True)
    return [row[len(prompt) : length].tolist() for row, length, prompt in rows], steps


@pytest.mark.parametrize("layout", LAYOUTS)
def test_greedy_text_equals_generate_plain_and_drafted(layout):
    _, ours = pair(layout, torch.float64)
    wanted = [generated(layout, prompt) for prompt in PROMPTS]
    assert [len(text) for text in wanted] == [NEW, NEW] and len({tuple(text) for text in wanted}) == 2
    plain, plain_steps = decoded(layout, NoDrafter())
    drafted, drafted_steps = decoded(layout, ModelDrafter(lm=tiny.noisy(ours, 0.1)))
    copied, _ = decoded(layout, NgramDrafter())
    assert plain == wanted
    assert drafted == wanted
    assert copied == wanted
    assert plain_steps == NEW and drafted_steps < NEW


def test_greedy_text_equals_generate_up_to_the_end_of_the_context():
    model = tiny.gpt2(n_positions=24)
    ours = tiny.native(model)
    prompt = PROMPTS[1]
    room = 24 - len(prompt)
    tokens = torch.tensor([prompt])
    wanted = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=room, do_sample=False)
    decoder = Decoder(
        target=ours, drafter=ModelDrafter(lm=ours), verifier=Coupled(), plan=Fixed(4), rows=1, max_length=24
    )
    decoder.admit([Request(tokens=prompt, max_tokens=room)], [0])
    while bool(decoder.batch.active.any()):
        decoder.step()
    assert decoder.batch.tokens[0, :24].tolist() == wanted[0].tolist()
