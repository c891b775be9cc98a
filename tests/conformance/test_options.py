"""Every sampling option, each in a row of its own beside the others: under every drafter, verifier and shape of
tree.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from paceline.core.sampling import FilterOrder
from paceline.core.tree import Draw
from paceline.drafters.model import ModelDrafter
from paceline.drafters.tree.shapes import Confident, Topology
from paceline.engine.runner import ops_for
from paceline.models.backend import fastest
from paceline.models.native.decoder import DecoderLM
from paceline.verifiers import VERIFIERS
from tests import reference, tiny
from tests.harness import (
    decoder_for,
    expected,
    family_cases,
    finish,
    guessable_target,
    naive_options,
    pairs,
    request,
    run,
    serve_in_turn,
)
from tests.harness import tiny_drafter as new

pytestmark = pytest.mark.one_in(15)

K = 3
NEVER = -math.inf
PAIRS = pairs()
every_pair = pytest.mark.parametrize(("drafter", "verifier"), family_cases())
SHAPES = {
    "two paths": Topology.parallel(2, 3),
    "bushy": Topology(((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0))),
    "confident": Confident(num_drafted=6, depth=3, width=2),
}
PROMPTS = ([5, 9, 2], [1], [8, 8, 8, 8, 8, 8], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [60, 0], [17, 4, 33, 17, 4])
BANNED = tuple(((token,), NEVER) for token in range(0, 30, 3))
# Of each row: what is done to its logits, how its sequence ends, and filters that matter where it samples.
ROWS = {
    "nothing": {},
    "repetition": dict(processing=dict(repetition_penalty=1.8)),
    "counts": dict(processing=dict(frequency_penalty=0.7, presence_penalty=0.9)),
    "rewards": dict(processing=dict(frequency_penalty=-0.4, repetition_penalty=0.9)),
    "bias": dict(processing=dict(bias=(((7,), 2.5), ((41,), 3.0), ((8,), -4.0)))),
    "runs": dict(processing=dict(bias=(((8, 41), 5.0), ((41, 41), NEVER), ((41, 8, 7), 6.0), ((13,), 2.0)))),
    "bans": dict(processing=dict(bias=BANNED), min_p=0.05, top_p=0.8),
    "allowed": dict(processing=dict(allowed=(3, 8, 9, 13, 22, 30, 41, 44, 50, 77)), typical_p=0.7),
    "no trigram twice": dict(processing=dict(no_repeat_ngram=3, bias=(((8,), 6.0), ((9,), 5.5)))),
    "no token twice": dict(processing=dict(no_repeat_ngram=1), epsilon_cutoff=0.02),
    "late": dict(processing=dict(late=((41, 4), (8, 9), (30, 1))), eta_cutoff=0.05),
    "late end": dict(stop_tokens=[8, 41, 13, 22, 30, 9], min_tokens=7, order=FilterOrder.VLLM, min_p=0.1, top_p=0.7),
    "everything": dict(
        processing=dict(
            bias=(((7,), 1.5), ((8, 41), 4.0), ((2,), NEVER)),
            allowed=tuple(range(2, 50)),
            repetition_penalty=1.2,
            frequency_penalty=0.2,
            presence_penalty=0.3,
            no_repeat_ngram=2,
            late=((9, 5),),
        ),
        stop_tokens=[44, 11, 12],
        min_tokens=6,
        top_k=20,
        top_p=0.9,
        typical_p=0.95,
        min_p=0.01,
        epsilon_cutoff=0.001,
        eta_cutoff=0.002,
    ),
}


def rows(temperature=0.0, max_tokens=20, prompts=PROMPTS, **more):
    return [
        request(
            prompts[i % len(prompts)],
            max_tokens=max_tokens - i % 3,
            temperature=temperature,
            seed=7 * i,
            **given,
            **more,
        )
        for i, given in enumerate(ROWS.values())
    ]


def wanted(requests, model=None):
    return [expected(one, model) for one in requests]


def test_options_change_the_outputs():
    """Else the rest of the file would hold without them."""
    plain = [replace(one, processing=type(one.processing)(), min_tokens=0) for one in rows()]
    same = [name for name, one, two in zip(ROWS, wanted(rows()), wanted(plain), strict=True) if one == two]
    assert same == ["nothing"]


@every_pair
def test_greedy_outputs_equal_the_reference(drafter, verifier):
    model, target = guessable_target(drafter)
    result = run(new(drafter, target), verifier, rows(), target=target, k=K)
    assert result.texts == wanted(rows(), model)
    assert drafter == "none" or sum(result.summary.accepted) > 5


@pytest.mark.parametrize(
    ("drafter", "verifier"), family_cases([one for one in PAIRS if VERIFIERS.find(one[1]).same_tokens])
)
def test_sampled_outputs_equal_the_reference(drafter, verifier):
    requests = rows(temperature=0.9)
    result = run(new(drafter, tiny.target()[1]), verifier, requests, k=K)
    assert result.texts == wanted(requests)
    assert drafter == "none" or sum(result.summary.drafted) > 20


@pytest.mark.slow
@every_pair
def test_a_row_of_a_batch_equals_that_row_alone(drafter, verifier):
    requests, target = rows(temperature=0.9, max_tokens=12), tiny.target()[1]
    alone = [run(new(drafter, target), verifier, [one], k=K).texts[0] for one in requests]
    assert run(new(drafter, target), verifier, requests[::-1], k=K).texts == alone[::-1]


@pytest.mark.each_value
@every_pair
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_kernels_outputs_equal_the_plain_ones(drafter, verifier, temperature):
    target, requests = tiny.target()[1], rows(temperature=temperature)
    plain = run(new(drafter, target), verifier, requests, k=K).texts
    quick, parts = fastest(target), dict(ops=ops_for(torch.device("cpu")))
    assert quick is not target
    drafting = new(drafter, target)
    if isinstance(vars(drafting).get("lm"), DecoderLM):
        drafting.lm = fastest(drafting.lm)
    assert run(drafting, verifier, requests, target=quick, k=K, parts=parts).texts == plain


def branching(few=tuple(SHAPES)):
    """Verifiers with the tree shapes that they support; shapes that are not in ``few`` are slow."""
    for name in VERIFIERS.builtin:
        kind = VERIFIERS.find(name)
        for label, shape in SHAPES.items() if kind.branches else ():
            if set(kind.wants) & shape.draws and not (name == "spectr" and label != "two paths"):
                marks = [] if label in few else [pytest.mark.slow]
                yield pytest.param(name, label, marks=marks, id=f"{name}-{label}".replace(" ", "_"))


def growing(shape, draws=None):
    return ModelDrafter(lm=tiny.noisy(tiny.target()[1], 0.12), shape=SHAPES[shape], draws=draws)


@pytest.mark.parametrize(("verifier", "shape"), list(branching()))
def test_outputs_of_trees_equal_the_reference(verifier, shape):
    temperatures = (0.0, 0.9) if VERIFIERS.find(verifier).same_tokens else (0.0,)
    for temperature in temperatures:
        requests = rows(temperature=temperature)
        result = run(growing(shape), verifier, requests, k=K)
        assert result.texts == wanted(requests)
        assert result.summary.mean_acceptance_length > (1.2 if temperature else 1.5)


@pytest.mark.parametrize(("verifier", "shape"), list(branching(few=["two paths"])))
def test_a_row_of_trees_equals_that_row_alone(verifier, shape):
    requests = rows(temperature=0.9, max_tokens=9)
    alone = [run(growing(shape), verifier, [one], k=K).texts[0] for one in requests]
    assert run(growing(shape), verifier, requests, k=K).texts == alone


@pytest.mark.parametrize("verifier", [name for name in VERIFIERS.builtin if ("model", name) in PAIRS])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("quick", [False, True], ids=["plain", "kernel"])
def test_a_draft_by_the_target_itself_is_accepted_whole(verifier, temperature, quick):
    """Its logits go through the same processors, each token with the draft before it."""
    endless = [one for one in rows(temperature=temperature, max_tokens=23) if not one.stop_tokens]
    asked = [replace(one, max_tokens=23) for one in endless]
    target = fastest(tiny.target()[1]) if quick else tiny.target()[1]
    parts = dict(ops=ops_for(torch.device("cpu"))) if quick else None
    kind = VERIFIERS.find(verifier)
    if temperature and kind.same_tokens and Draw.SHARED not in kind.wants:
        pytest.skip("a draft with noise of its own is refused where the target's noise chooses otherwise")
    result = run(ModelDrafter(lm=target), verifier, asked, target=target, k=K, parts=parts)
    assert result.summary.acceptance_rate == 1.0
    assert result.steps == math.ceil(23 / (K + 1))


@pytest.mark.parametrize("shape", ["two paths", "bushy"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_tree_by_the_target_itself_is_accepted_to_its_end(shape, temperature):
    asked = [replace(one, max_tokens=23) for one in rows(temperature=temperature) if not one.stop_tokens]
    drafter = ModelDrafter(lm=tiny.target()[1], shape=SHAPES[shape])
    result = run(drafter, "coupled", asked, k=K)
    assert result.steps == math.ceil(23 / (K + 1))


@pytest.mark.parametrize("vocab", [tiny.VOCAB - 6, tiny.VOCAB + 6])
@pytest.mark.parametrize("shape", [None, "bushy"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_draft_of_a_padded_vocabulary_is_processed_as_the_targets_is(vocab, shape, temperature):
    model = tiny.llama(1)
    model.resize_token_embeddings(vocab, mean_resizing=False)
    drafter = ModelDrafter(lm=tiny.native(model), shape=None if shape is None else SHAPES[shape])
    requests = rows(temperature=temperature)
    result = run(drafter, "coupled", requests, k=K)
    assert result.texts == wanted(requests)
    assert result.summary.mean_acceptance_length > 2


@every_pair
def test_reused_slots_carry_nothing_over(drafter, verifier):
    """Rows of other options follow each other while their neighbours go on."""
    target, queue = tiny.target()[1], rows(max_tokens=11) + rows(max_tokens=9)[::-1]
    decoder = decoder_for(new(drafter, target), verifier, k=K, rows=3)
    assert serve_in_turn(decoder, queue, release=True) == wanted(queue)


@pytest.mark.parametrize("verifier", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_log_probabilities_are_the_references(verifier, temperature):
    requests, model = rows(temperature=temperature, logprobs=3, max_tokens=9), tiny.gpt2(4)
    target = tiny.native(model)
    decoder = decoder_for(new("model", target), verifier, target=target, k=K, rows=len(requests))
    decoder.admit(requests, range(len(requests)))
    result = finish(decoder, rows=list(range(len(requests))), prompts=[one.tokens for one in requests])
    for row, one in enumerate(requests):
        found = [chosen for report in result.reports for chosen in report.logprobs[row]]
        assert len(found) == len(result.texts[row])
        options = naive_options(one)
        processing = reference.late_stops(options.pop("processing"), options.pop("stop"), options.pop("min_tokens"))
        options.pop("seed")
        for at, (token, chosen) in enumerate(zip(result.texts[row], found, strict=True)):
            before = result.texts[row][:at]
            with torch.no_grad():
                logits = model(torch.tensor([[*one.tokens, *before]])).logits[0, -1].numpy()
            scores = reference.process(logits, one.tokens, before, **processing)
            distribution = reference.distribution_after(scores, **options)
            assert distribution[token] > 0
            assert chosen.raw == pytest.approx(float(np.log(reference.warp(logits))[token]), abs=1e-9)
            assert chosen.processed == pytest.approx(float(np.log(distribution[token])), abs=1e-9)
            best = [int(other) for other in np.argsort(-distribution, kind="stable")[:3] if distribution[other] > 0]
            assert [other for other, _ in chosen.top_processed] == best
            assert [value for _, value in chosen.top_processed] == pytest.approx(
                list(np.log(distribution[best])), abs=1e-9
            )
