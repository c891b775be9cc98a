"""A draft model that a smaller drafter drafts for."""

import pytest
import torch

from paceline.core.tree import Draw
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.staged import StagedDrafter
from tests import tiny as models
from tests.harness import decoder_for, expected, request, run

FOLLOWS = True
FLOOR = 1.7  # mean acceptance length on the conformance prompts, greedy: that of the draft model alone


def oracle(target, scale=0.12, seed=3):
    """The target with noise on its weights."""
    return ModelDrafter(lm=models.noisy(target, scale, seed=seed))


def tiny(target):
    """Three stages: the target with noise, the same with more noise, and prompt lookup."""
    inner = StagedDrafter(draft=oracle(target, 0.2, seed=4), inner=NgramDrafter())
    return StagedDrafter(draft=oracle(target), inner=inner)


class Counted:
    """An LM that counts the forwards that have something to score, and checks that ids are its own."""

    def __init__(self, lm):
        self.lm, self.num_forwards = lm, 0

    def __getattr__(self, name):
        return getattr(self.lm, name)

    def __call__(self, tree, cache, **options):
        self.num_forwards += bool(tree.valid[:, options.get("start", 0) :].any())
        return self.lm(tree, cache, **options)


PROMPTS = ([5, 9, 2], [1], [8, 8, 8, 8, 8, 8], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])
PENALTIES = dict(repetition_penalty=1.3, frequency_penalty=0.2, no_repeat_ngram=4, bias=(((8, 41), 2.0),))


def asked(temperature, max_tokens=40, **more):
    return [
        request(prompt, max_tokens=max_tokens - 3 * row, temperature=temperature, seed=row, **more)
        for row, prompt in enumerate(PROMPTS)
    ]


def drafts_of(drafter, requests, *, k, draws=None, parts=None, target=None):
    """Every draft by row and length of the sequence before it, and how many steps were taken."""
    decoder = decoder_for(drafter, "coupled", k=k, rows=len(requests), parts=parts, target=target)
    decoder.admit(requests, range(len(requests)))
    found, steps = {}, 0
    while bool(decoder.batch.active.any()):
        before = decoder.batch.length.tolist()
        plan = decoder.plan()
        decoder.begin_step(plan)
        with torch.inference_mode():
            tree = decoder.draft(plan)
            scores = decoder.score(tree)
            decoder.observe(tree, decoder.decide(tree, scores), scores)
        for row, length in enumerate(before):
            if tree.valid[row, 0]:
                found[row, length] = tree.tokens[row][tree.valid[row]].tolist()
        steps += 1
    return found, steps


INNER = {
    "ngram": lambda target: NgramDrafter(),
    "itself": lambda target: oracle(target),
    "another model": lambda target: ModelDrafter(lm=models.draft()),
    "the target": lambda target: ModelDrafter(lm=target),
    "staged": lambda target: StagedDrafter(draft=oracle(target, 0.2, seed=4), inner=NgramDrafter()),
    "twice staged": lambda target: StagedDrafter(
        draft=oracle(target, 0.2, seed=4), inner=StagedDrafter(draft=oracle(target, 0.1, seed=5), inner=oracle(target))
    ),
}


@pytest.mark.parametrize("processing", [{}, PENALTIES], ids=["free", "penalties"])
@pytest.mark.parametrize("draw", [Draw.FIXED, Draw.SHARED])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("inner", INNER)
def test_drafts_are_those_of_the_draft_model_alone(inner, k, temperature, draw, processing):
    _, target = models.target()
    requests = asked(temperature, processing=processing)
    alone = ModelDrafter(lm=models.noisy(target, 0.12), draws=frozenset({draw}))
    draft = ModelDrafter(lm=models.noisy(target, 0.12), draws=frozenset({draw}))
    staged = StagedDrafter(draft=draft, inner=INNER[inner](target))
    assert drafts_of(staged, requests, k=k) == drafts_of(alone, requests, k=k)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k", [2, 5])
def test_an_inner_drafter_equal_to_the_draft_model_is_accepted_whole(k, temperature):
    """And the draft model reads each chain in as few forwards as there can be."""
    _, target = models.target()
    draft = Counted(models.noisy(target, 0.12))
    staged = StagedDrafter(draft=ModelDrafter(lm=draft), inner=oracle(target), num_inner_tokens=4)
    decoder = decoder_for(staged, "coupled", k=k, rows=1)
    decoder.admit([request([5, 9, 2], max_tokens=60, temperature=temperature, seed=3)], [0])
    while bool(decoder.batch.active[0]):
        before = draft.num_forwards
        decoder.step()
        assert draft.num_forwards - before <= 1
    ((name, stats),) = [(one.name, one.stats.summary()) for one in staged.stages]
    assert name == "model" and stats.acceptance_rate == 1.0 and sum(stats.drafted) > 20


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_equal_to_the_target_is_accepted_whole(temperature):
    _, target = models.target()
    staged = StagedDrafter(draft=ModelDrafter(lm=target), inner=tiny(target))
    requests = [request([7, 3, 5][: 1 + row], max_tokens=24, temperature=temperature, seed=row) for row in range(3)]
    result = run(staged, "coupled", requests, k=5)
    assert result.texts == [expected(one) for one in requests]
    assert result.steps == 4 and result.summary.acceptance_rate == 1.0
    assert len(staged.stages) == 3
