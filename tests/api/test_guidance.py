"""Classifier-free guidance through the API matches transformers."""

import pytest
import torch

from paceline import Engine, SamplingParams, Session, generate, load
from tests import tiny

PROMPTS = [[3, 9, 4], [7, 7, 1, 2, 5, 8]]


def theirs(model, prompt, scale, negative, max_tokens=9):
    given = None if negative is None else torch.tensor([negative])
    ids = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        guidance_scale=scale,
        negative_prompt_ids=given,
        max_new_tokens=max_tokens,
        do_sample=False,
        pad_token_id=0,
    )
    return ids[0, len(prompt) :].tolist()


@pytest.mark.parametrize("drafter", [None, "ngram", "itself"])
def test_guided_outputs_match_transformers(drafter):
    model, _ = tiny.target()
    target = load(model)
    asked = [
        SamplingParams(temperature=0, max_tokens=9, guidance_scale=1.6),
        SamplingParams(temperature=0, max_tokens=9, guidance_scale=0.3, negative_prompt=[5] * 11),
    ]
    drafting = target if drafter == "itself" else drafter
    results = generate(target, PROMPTS, asked, drafter=drafting, num_draft_tokens=5)
    wanted = [theirs(model, PROMPTS[0], 1.6, None), theirs(model, PROMPTS[1], 0.3, [5] * 11)]
    assert [list(result.token_ids) for result in results] == wanted
    if drafter == "itself":
        assert sum(sum(result.stats.accepted) for result in results) > 0


def test_guided_and_unguided_requests_share_an_engine():
    model, _ = tiny.target()
    engine = Engine(load(model), batch_size=2, guidance=True, max_length=60)
    guided = SamplingParams(temperature=0, max_tokens=7, guidance_scale=2.5, negative_prompt=[1, 2])
    plain = SamplingParams(temperature=0, max_tokens=7)
    results = engine.generate([PROMPTS[0]] * 5, [guided, plain, plain, guided, plain])
    texts = [list(result.token_ids) for result in results]
    assert texts[0] == texts[3] == theirs(model, PROMPTS[0], 2.5, [1, 2], max_tokens=7)
    assert texts[1] == texts[2] == texts[4] == list(generate(load(model), [PROMPTS[0]], plain)[0].token_ids)
    assert texts[0] != texts[1]


def test_guidance_is_refused_by_an_engine_without_second_rows():
    engine = Engine(load(tiny.target()[0]), batch_size=1, max_length=60)
    with pytest.raises(ValueError, match=r"prompt 0: guidance_scale=2\.0 needs a second row.*guidance=True"):
        engine.submit([PROMPTS[0]], SamplingParams(guidance_scale=2.0, max_tokens=3))


def test_session_supports_guidance():
    model, _ = tiny.target()
    session = Session(load(model), guidance=True, max_length=60)
    result = session.send(PROMPTS[0], SamplingParams(temperature=0, max_tokens=9, guidance_scale=1.6))
    assert list(result.token_ids) == theirs(model, PROMPTS[0], 1.6, None)
