"""A head that predicts the target's next feature (EAGLE-1 and 2, HASS)."""

import pytest
import torch

from paceline.draft_heads.eagle import EagleConfig, EagleHead
from paceline.drafters.eagle import EagleDrafter
from tests import tiny as models
from tests.drafters.pairs import (
    DEEPEST,
    SHAPES,
    check_cache,
    check_outputs,
    check_overfitted,
    check_parity,
    check_trees,
    feed_forwards_alone,
    randomised,
)

FLOOR = 2.5  # mean acceptance length on the conformance prompts, greedy


def new_head(target, *, seed=0, **options):
    config = EagleConfig(**{"norm_eps": target.config.norm_eps, **options})
    return EagleHead.make(config, target, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def echo(target, noise=0.0, **options):
    """A head that computes the target from the newest token, where that alone decides the next, with noise.

    It passes the embedding on, its attention adds nothing, and its feed-forwards are the target's; the target's norm is
    but a factor.
    """
    head = new_head(target, num_layers=target.num_layers, **options)
    own = feed_forwards_alone(head, target, noise=noise)
    size = target.config.hidden_size
    own["fc.weight"][:, :size] = torch.eye(size)
    head.load_own_state(own)
    return head


@torch.no_grad()
def tiny(target):
    if target.config.rotary is None:
        return EagleDrafter(head=new_head(target))
    return EagleDrafter(head=echo(target, 0.03))


def guessable_target():
    return models.looping_target()


OPTIONS = {
    "as published": {},
    "before the target's norm": {"normalized": False, "tap": 2},
    "norm of its input": {"first_norm": True, "fc_bias": False},
    "few tokens": {"draft_vocab_size": 40},
    "two layers": {"num_layers": 2, "attention_bias": True, "num_heads": 2, "head_dim": 16, "ffn_size": 40},
}


def head_of(name, target=None):
    head = randomised(new_head(target or models.target()[1], depth=DEEPEST, **OPTIONS[name]))
    if head.draft_vocab is not None:
        head.load_own_state({**head.own_state(), "draft_ids": torch.arange(15, 55)})
    return head


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", OPTIONS)
def test_draft_logits_equal_training_logits(options):
    assert check_parity(EagleDrafter(head=head_of(options))) == {1, 2, 3, 4}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shape", ["bushy", "confident"])
def test_draft_logits_of_trees_equal_training_logits(shape):
    assert {1, 2} <= check_parity(EagleDrafter(head=head_of("as published"), shape=SHAPES[shape]))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_cache_is_of_the_targets_features_at_verified_tokens(shape):
    check_cache(EagleDrafter(head=head_of("as published"), shape=SHAPES[shape]))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_outputs_are_the_references_whatever_the_head_says(options, shape):
    check_outputs(EagleDrafter(head=head_of(options), shape=SHAPES[shape]))


def test_an_output_that_it_was_trained_on_takes_the_fewest_steps():
    check_overfitted(EagleDrafter, new_head(models.target()[1], depth=4))


def test_trees_keep_more_than_chains_and_change_no_output():
    model, target = guessable_target()
    check_trees(lambda shape: EagleDrafter(head=echo(target, 0.1), shape=shape), model, target)
