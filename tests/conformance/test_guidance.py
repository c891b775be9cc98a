"""Guided rows: two streams of the target on one step, equal to transformers' own and to a naive decoder."""

import numpy as np
import pytest
import torch

from paceline.core.guidance import Guidance
from paceline.core.request import Processing, Request
from paceline.core.sampling import Sampling
from paceline.drafters import DRAFTERS as REGISTERED
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.tree.shapes import Confident, Topology
from paceline.engine.runner import ops_for
from paceline.models.backend import fastest
from tests import reference, tiny
from tests.harness import decoder_for, expected, finish, tiny_drafter

pytestmark = pytest.mark.one_in(15)

PROMPTS = ([3, 9, 4], [7, 7, 1, 2, 5, 8])


def distribution(model, sequence, other, scale):
    """Logits of the next token, by one plain forward for each stream."""
    with torch.no_grad():
        one, two = (model(torch.tensor([ids])).logits[0, -1].double().log_softmax(-1) for ids in (sequence, other))
    return (scale * (one - two) + two).numpy()


def naive(model, request):
    """Token after token; the noise is the reference's."""
    sequence, other = list(request.tokens), list(request.guidance.prompt)
    for _ in range(request.max_tokens):
        logits = distribution(model, sequence, other, request.guidance.scale)
        options = request.sampling
        if options.temperature == 0:
            token = int(logits.argmax())
        else:
            chances = reference.warp(logits / options.temperature, options.top_k)
            with np.errstate(divide="ignore"):
                token = int((reference.exponentials(options.seed, len(sequence), len(chances)) / chances).argmin())
        sequence.append(token)
        other.append(token)
    return sequence[len(request.tokens) :]


def guided(prompt, scale, negative, **sampling):
    return Request(
        tokens=prompt, max_tokens=17, guidance=Guidance(scale=scale, prompt=negative), sampling=Sampling(**sampling)
    )


DRAFTERS = {
    **{name: lambda target, name=name: tiny_drafter(name, tiny.target()[1]) for name in REGISTERED.builtin},
    "the target": lambda target: ModelDrafter(lm=target),
    "another model": lambda target: ModelDrafter(lm=tiny.draft()),
    "a tree": lambda target: ModelDrafter(lm=target, shape=Topology.branching((2, 2, 1))),
    "a head": lambda target: tiny_drafter("prophet", tiny.target()[1]),
    "a confident tree": lambda target: ModelDrafter(lm=target, shape=Confident(num_drafted=5, depth=3, width=2)),
}


@pytest.mark.each_value
@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_guided_rows_beside_a_free_one_are_those_of_plain_forwards(drafter, temperature, kernel):
    model, target = tiny.target()
    target = fastest(target) if kernel else target
    requests = [
        guided(PROMPTS[0], 1.7, [5], temperature=temperature, seed=3),
        Request(tokens=PROMPTS[1], max_tokens=11, sampling=Sampling(temperature=temperature, seed=8)),
        guided(PROMPTS[1], 0.4, [2, 9, 9, 1, 4, 6, 8, 8], temperature=temperature, seed=4, top_k=7),
    ]
    decoder = decoder_for(
        DRAFTERS[drafter](target),
        "coupled",
        target=target,
        rows=3,
        guidance=True,
        parts=dict(ops=ops_for(torch.device("cpu"))) if kernel else None,
    )
    decoder.admit(requests, [0, 1, 2])
    found = finish(decoder, rows=[0, 1, 2], prompts=[request.tokens for request in requests])
    assert found.texts == [naive(model, requests[0]), expected(requests[1]), naive(model, requests[2])]
    if drafter == "the target":
        assert found.summary.accepted[0] > 0


def test_a_row_forgets_its_guidance():
    model, _ = tiny.target()
    decoder = decoder_for(NoDrafter(), "coupled", rows=1, guidance=True)
    one, plain = guided(PROMPTS[0], 2.0, [5]), Request(tokens=PROMPTS[0], max_tokens=9)
    for request in (one, plain, one):
        decoder.admit([request], [0])
        found = finish(decoder, rows=[0], prompts=[request.tokens])
        assert found.texts[0] == (expected(plain) if request is plain else naive(model, request))
    assert naive(model, one)[:9] != expected(plain)


def test_processors_see_guided_logits():
    _, target = tiny.target()
    first = naive(tiny.target()[0], guided(PROMPTS[0], 1.7, [5]))[0]
    request = Request(
        tokens=PROMPTS[0],
        max_tokens=3,
        guidance=Guidance(scale=1.7, prompt=[5]),
        processing=Processing(bias=(((first,), -float("inf")),)),
    )
    decoder = decoder_for(ModelDrafter(lm=target), "coupled", rows=1, guidance=True)
    decoder.admit([request], [0])
    assert first not in finish(decoder, rows=[0], prompts=[request.tokens]).texts[0]


def test_without_second_rows_guidance_is_refused():
    decoder = decoder_for(NoDrafter(), "coupled", rows=1)
    with pytest.raises(ValueError, match=r"guidance_scale=1\.7 needs a second row.*guidance=True"):
        decoder.admit([guided(PROMPTS[0], 1.7, [5])], [0])


def test_a_negative_prompt_must_fit_as_the_prompt_does():
    decoder = decoder_for(NoDrafter(), "coupled", rows=1, guidance=True, max_length=30)
    with pytest.raises(ValueError, match="prompt of 20 tokens and max_tokens=17 exceed the limit of 30 tokens"):
        decoder.admit([guided(PROMPTS[0], 1.7, [1] * 20)], [0])
    with pytest.raises(ValueError, match="leave the target's vocabulary"):
        decoder.admit([guided(PROMPTS[0], 1.7, [999])], [0])


@pytest.mark.parametrize("given", [dict(scale=float("nan"), prompt=[1]), dict(scale=2.0, prompt=[])])
def test_guidance_names_what_is_wrong(given):
    with pytest.raises(ValueError, match="give"):
        Guidance(**given)
