"""Regenerated training sequences, and acceptance measurements."""

import numpy as np
import pytest

from demo.recipes.regenerate import regenerate
from paceline.core.noise import split_seed
from paceline.core.sampling import Sampling
from paceline.drafters.model import ModelDrafter
from paceline.text.loops import is_looping
from paceline.train.acceptance import measure_acceptance, require_outputs
from tests import tiny
from tests.harness import expected, request

PROMPTS = np.array([[5, 9, 2], [1, 1, 4], [8, 8, 8], [3, 1, 4], [60, 0, 7]])


def accepted(target, drafter, *, num_tokens=24, sampling=None):
    return measure_acceptance(
        target, drafter, PROMPTS, num_tokens=num_tokens, num_draft_tokens=3, sampling=sampling or Sampling()
    )


def test_regenerated_outputs_match_plain_decoding_with_the_prompts_seed():
    model, target = tiny.target()
    samplings = (Sampling(), Sampling(temperature=1.0, top_p=0.9, seed=11))
    texts = regenerate(target, PROMPTS, samplings, num_tokens=20, rows=2)
    wanted = []
    for index, prompt in enumerate(PROMPTS.tolist()):
        options = {} if index % 2 == 0 else dict(temperature=1.0, top_p=0.9, seed=split_seed(11, index))
        wanted.append([*prompt, *expected(request(prompt, max_tokens=20, **options), model)])
    assert texts.dtype == np.uint16
    assert texts.tolist() == [text for text in wanted if not is_looping(text[3:])]
    assert len(texts) >= 3


def test_looping_outputs_are_left_out():
    _, target = tiny.looping_target(8)  # its greedy text alternates between two tokens
    with pytest.raises(ValueError, match="all 5 outputs loop"):
        regenerate(target, PROMPTS, (Sampling(),), num_tokens=40, rows=5)
    with pytest.raises(ValueError, match="all 5 outputs loop"):
        require_outputs(accepted(target, ModelDrafter(lm=target), num_tokens=40))


def test_measured_acceptance_matches_the_decoder():
    _, target = tiny.target()
    itself = accepted(target, ModelDrafter(lm=target))
    assert itself.summary.mean_acceptance_length == 4.0 and itself.by_position == [1.0, 1.0, 1.0]
    assert itself.interval == (4.0, 4.0)
    assert itself.num_outputs + itself.num_looping == 5
    other = accepted(target, ModelDrafter(lm=tiny.noisy(target, 0.12)))
    assert 1.2 < other.summary.mean_acceptance_length < 4.0
    low, high = other.interval
    assert 1.0 <= low < other.summary.mean_acceptance_length < high <= 4.0
    warm = accepted(target, ModelDrafter(lm=target), sampling=Sampling(temperature=1.0))
    assert warm.summary.mean_acceptance_length == 4.0 and warm.num_looping <= itself.num_looping


def test_every_prompt_has_its_own_seed():
    _, target = tiny.target()
    draft = ModelDrafter(lm=tiny.noisy(target, 0.12))
    found = measure_acceptance(
        target,
        draft,
        PROMPTS[[0, 0, 0, 0]],
        num_tokens=24,
        num_draft_tokens=3,
        sampling=Sampling(temperature=1.0, seed=5),
    )
    assert len({text.accepted[0] for text in found.outputs}) > 1
