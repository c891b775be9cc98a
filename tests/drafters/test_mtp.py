"""A multi-token-prediction module, applied to its own output (DeepSeek-V3)."""

import pytest
import torch

from paceline.draft_heads.mtp import MTPConfig, MTPHead
from paceline.drafters.mtp import MTPDrafter
from paceline.models.native.layers import RMSNorm
from tests import tiny as models
from tests.drafters.pairs import (
    DEEPEST,
    SHAPES,
    check_aborted,
    check_cache,
    check_outputs,
    check_overfitted,
    check_parity,
    check_trees,
    feed_forwards_alone,
    randomised,
)
from tests.drafters.test_eagle3 import guessable_target as guessable_target  # embeddings of one length

FLOOR = 2.5  # mean acceptance length on the conformance prompts, greedy


def new_head(target, *, seed=0, **options):
    return MTPHead.make(MTPConfig(**options), target, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def echo(target, noise=0.0, **options):
    """A head that computes the target from the newest token, where that alone decides the next, with noise.

    It passes the embedding on, which a norm of it only scales; its attention adds nothing, and its feed-forwards and
    its last norm are the target's.
    """
    config, size = target.config, target.config.hidden_size
    head = new_head(target, **{"num_layers": target.num_layers, "zero_first": False, **options})
    own = feed_forwards_alone(head, target, noise=noise)
    rms = (target.embed.weight.square().mean(-1) + config.norm_eps).sqrt().mean()
    own["embedding_norm.weight"] += 1
    own["eh_proj.weight"][:, size:] = rms * torch.eye(size)  # the feature is first
    own["norm.weight"] = target.norm.weight.clone()
    head.load_own_state(own)
    return head


@torch.no_grad()
def tiny(target):
    if target.config.rotary is None or not isinstance(target.norm, RMSNorm):
        return MTPDrafter(head=new_head(target))
    return MTPDrafter(head=echo(target, 0.03))


OPTIONS = {
    "as MiMo": {},
    "as DeepSeek-V3": {"embedding_first": True, "normalized": True},
    "as Qwen3-Next": {"embedding_first": True, "normalized": True, "zero_first": False, "norm_offset": True},
    "fed back before the norm": {"norm_output": False, "zero_first": False, "rope_theta": 500.0},
    "an earlier state": {"tap": 2, "qk_norm": True},
    "few tokens": {"draft_vocab_size": 40},
    "two layers": {"num_layers": 2, "attention_bias": True, "num_heads": 2, "ffn_size": 40, "norm_eps": 1e-3},
}


def head_of(name, target=None):
    head = randomised(new_head(target or models.target()[1], depth=DEEPEST, **OPTIONS[name]))
    if head.draft_vocab is not None:
        head.load_own_state({**head.own_state(), "draft_ids": torch.arange(15, 55)})
    return head


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", OPTIONS)
def test_draft_logits_equal_training_logits(options):
    assert check_parity(MTPDrafter(head=head_of(options))) == {1, 2, 3, 4}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shape", ["bushy", "confident"])
def test_draft_logits_of_trees_equal_training_logits(shape):
    assert {1, 2} <= check_parity(MTPDrafter(head=head_of("as MiMo"), shape=SHAPES[shape]))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_cache_is_of_the_targets_features_at_verified_tokens(shape):
    check_cache(MTPDrafter(head=head_of("as MiMo"), shape=SHAPES[shape]))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_outputs_are_the_references_whatever_the_head_says(options, shape):
    check_outputs(MTPDrafter(head=head_of(options), shape=SHAPES[shape]))


@pytest.mark.parametrize("shape", SHAPES)
def test_what_an_aborted_draft_has_read_is_taken_back(shape):
    check_aborted(MTPDrafter(head=new_head(models.target()[1]), shape=SHAPES[shape]))


def test_an_output_that_it_was_trained_on_takes_the_fewest_steps():
    check_overfitted(MTPDrafter, new_head(models.target()[1], depth=4))


def test_trees_keep_more_than_chains_and_change_no_output():
    model, target = guessable_target()
    check_trees(lambda shape: MTPDrafter(head=echo(target, 0.1), shape=shape), model, target)


def test_sizes_norms_and_angles_are_the_targets_unless_they_are_given():
    _, target = models.target()
    own, other = new_head(target).decoder.config, new_head(target, rope_theta=500.0, norm_eps=0.1).decoder.config
    assert own.rotary == target.config.rotary and own.norm_eps == target.config.norm_eps
    assert own.num_kv_heads == target.config.num_kv_heads and other.norm_eps == 0.1 and other.rotary != own.rotary
    size = 2 * target.config.head_dim
    with pytest.raises(ValueError, match=f"head_dim={size}: the target's rotary .* of heads of {size // 2}, so give"):
        new_head(target, head_dim=size)
    with pytest.raises(ValueError, match="without rope_theta: give both, or none of them"):
        new_head(target, rope_scaling={"rope_type": "linear", "factor": 2.0})
    with pytest.raises(ValueError, match="tap=4: the target has 3 layers, so give 0 to that many"):
        new_head(target, tap=4)
