"""Losses."""

import pytest
import torch
import torch.nn.functional as F

from paceline.train.objectives import Distillation, next_token
from tests import tiny
from tests.models.layouts import texts


def small(seed=1):
    return tiny.native(tiny.llama(seed, dtype=torch.float32))


@torch.no_grad()
def test_next_token_is_the_cross_entropy_of_transformers():
    model = tiny.llama(1, dtype=torch.float32)
    tokens = texts(3, 17)
    wanted = model(tokens, labels=tokens, use_cache=False).loss
    torch.testing.assert_close(next_token(tiny.native(model), tokens), wanted, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_draft_equal_to_its_target_has_no_soft_loss():
    tokens = texts(3, 17)
    assert abs(float(Distillation(small(), soft=1.0)(small(), tokens))) < 1e-6
    assert float(Distillation(small(), soft=1.0)(small(2), tokens)) > 0.1


@torch.no_grad()
@pytest.mark.parametrize("soft", [0.0, 0.3, 1.0])
def test_distillation_is_divergence_and_cross_entropy_of_the_argmax_in_shares(soft):
    target, draft, tokens = small(1), small(2), texts(3, 17)
    wanted = target.causal(tokens[:, :-1]).logits.double().softmax(-1)
    own = draft.causal(tokens[:, :-1]).logits.double().log_softmax(-1)
    divergence = (wanted * (wanted.log() - own)).sum(-1).mean()
    hard = F.nll_loss(own.flatten(0, 1), wanted.argmax(-1).flatten())
    found = Distillation(target, soft=soft)(draft, tokens)
    torch.testing.assert_close(found.double(), soft * divergence + (1 - soft) * hard, rtol=1e-4, atol=1e-4)


def test_only_the_draft_learns():
    target, draft = small(1).requires_grad_(True), small(2).requires_grad_(True)
    Distillation(target, soft=0.5)(draft, texts(2, 9)).backward()
    assert all(parameter.grad is None for parameter in target.parameters())
    assert all(parameter.grad is not None for parameter in draft.parameters())
