"""Validation scores match what serving gives."""

import numpy as np
import pytest
import torch

from demo.recipes.crops import Crops
from paceline.core.sampling import Sampling
from paceline.drafters.model import ModelDrafter
from paceline.train.acceptance import measure_acceptance, requests_of
from paceline.train.config import ValidationSection
from paceline.train.tasks import Distillation, DraftHeadTask, NextToken, TrainedHead
from paceline.train.tasks.losses import DistillationLoss
from paceline.train.validation import Validation, text_loss
from tests import tiny
from tests.train.heads import LastConfig, LastDrafter, LastHead
from tests.train.synthetic import corpus

PROMPTS = np.array([[5, 9, 2], [1, 1, 4], [8, 8, 8], [3, 1, 4], [60, 0, 7]])
SECTION = ValidationSection(prompts=5, prompt_tokens=3, tokens=20, k=3)


def validation(section=SECTION, serve=lambda head: LastDrafter(head=head)):
    held_out = Crops([(corpus(1), 1.0)], rows=4, length=16, seed=2)
    return Validation(
        section=section, requests=requests_of(PROMPTS, section.tokens), held_out=held_out, seed=4, serve=serve
    )


def last_head(target):
    """A head whose distribution depends on the last token alone, so that some drafts are accepted."""
    head = LastHead(LastConfig(), tiny.VOCAB).double()
    with torch.no_grad():
        head.table.weight.copy_(target.causal(torch.arange(tiny.VOCAB)[:, None]).logits[:, 0])
    return head


def heads(target, *, target_weight=None, names=("last",)):
    trained_heads = [TrainedHead(name=name, head=last_head(target)) for name in names]
    return DraftHeadTask(
        target=target, heads=trained_heads, loss=DistillationLoss(terms={"kl": 1.0}), target_weight=target_weight
    )


@torch.no_grad()
def test_score_of_a_head_is_its_drafters_tokens_per_step():
    target = tiny.native(tiny.llama(12))
    task = heads(target)
    score = validation()(task)
    for name, sampling in (("greedy", Sampling(seed=4)), ("t1", Sampling(temperature=1.0, seed=4))):
        found = measure_acceptance(
            target,
            LastDrafter(head=last_head(target)),
            PROMPTS,
            num_tokens=20,
            num_draft_tokens=3,
            sampling=sampling,
        )
        assert score.metrics[f"validation.last.{name}.tokens_per_step"] == found.summary.mean_acceptance_length
        assert score.metrics[f"validation.last.{name}.num_texts"] == found.num_outputs
        assert score.metrics[f"validation.last.{name}.position.1"] == found.by_position[0]
        low, high = (score.metrics[f"validation.last.{name}.{end}"] for end in ("low", "high"))
        assert low <= found.summary.mean_acceptance_length <= high
    assert score.value == score.length == score.metrics["validation.last.greedy.tokens_per_step"]
    assert 1.0 < score.value < 4.0


@torch.no_grad()
def test_score_of_a_draft_model_is_its_greedy_tokens_per_step():
    target = tiny.native(tiny.llama(1))
    itself = Distillation(target=target, draft=target, loss=DistillationLoss(terms={"kl": 1.0}))
    assert validation()(itself).value == 4.0
    other = Distillation(target=target, draft=tiny.noisy(target, 0.12), loss=DistillationLoss(terms={"kl": 1.0}))
    found = measure_acceptance(
        target, ModelDrafter(lm=other.draft), PROMPTS, num_tokens=20, num_draft_tokens=3, sampling=Sampling(seed=4)
    )
    assert validation()(other).value == found.summary.mean_acceptance_length < 4.0


@torch.no_grad()
def test_score_of_several_heads_is_their_mean():
    target = tiny.native(tiny.llama(12))
    never = lambda head: ModelDrafter(lm=target)  # noqa: E731 - whatever the head, always right
    score = validation(serve=never)(heads(target, names=("one", "two")))
    assert score.value == 4.0
    assert {name.split(".")[1] for name in score.metrics} == {"one", "two"}


@torch.no_grad()
def test_score_of_a_trained_target_is_its_held_out_loss():
    target = tiny.native(tiny.llama(12))
    score = validation()(heads(target, target_weight=1.0))
    held_out = Crops([(corpus(1), 1.0)], rows=4, length=16, seed=2)
    assert score.value == -text_loss(target, held_out) == -score.metrics["validation.loss"]
    assert score.length == score.metrics["validation.last.greedy.tokens_per_step"]
    assert validation()(NextToken(model=target)).value == score.value


@torch.no_grad()
def test_looping_outputs_are_not_measured():
    _, target = tiny.looping_target(8)
    section = SECTION.model_copy(update={"tokens": 40, "temperature": 0.0})
    score = validation(section)(heads(target))
    assert score.value is None
    assert score.metrics == {"validation.last.greedy.num_texts": 0.0, "validation.last.greedy.num_looping": 5.0}


def test_held_out_loss_is_per_token():
    """A uniform model's loss is the logarithm of the vocabulary size."""
    target = tiny.native(tiny.llama(12))
    for parameter in target.parameters():
        parameter.data.zero_()
    held_out = Crops([(corpus(1), 1.0)], rows=4, length=16, seed=2)
    assert text_loss(target, held_out) == pytest.approx(np.log(tiny.VOCAB), rel=1e-6)
