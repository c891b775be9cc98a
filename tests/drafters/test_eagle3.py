"""A head over pairs of a fused feature and the token after it (EAGLE-3)."""

from functools import cache

import pytest
import torch

from paceline.core.tree import Draw
from paceline.draft_heads.eagle3 import Eagle3Config, Eagle3Head
from paceline.drafters.eagle3 import Eagle3Drafter
from paceline.drafters.tree.shapes import Confident, Topology
from tests import tiny as models
from tests.drafters.pairs import (
    DEEPEST,
    SHAPES,
    check_cache,
    check_outputs,
    check_overfitted,
    check_parity,
    randomised,
)
from tests.harness import expected, request, run

pytestmark = pytest.mark.one_in(14)

SEED = 5
FLOOR = 2.5  # mean acceptance length on the conformance prompts, greedy
SHARP = 25.0  # of the constant queries and keys below: a token attends to itself


def new_head(target, *, seed=0, **options):
    config = Eagle3Config(**{"norm_eps": target.config.norm_eps, **options})
    return Eagle3Head.make(config, target, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def echo(target, noise=0.0, **options):
    """A head that computes the target from the newest token, where that alone decides the next, with noise.

    Constant queries and keys attend to their own position alone, by the rotary embedding; values are the token's. The
    feed-forwards are the target's, and a norm of zeros leaves out the features.
    """
    config, size = target.config, target.config.hidden_size
    heads = dict(
        num_heads=config.num_heads, num_kv_heads=config.num_heads, attention_bias=True, norm_before_residual=True
    )
    head = new_head(target, num_layers=target.num_layers, **heads, **options)
    own = {name: torch.zeros_like(tensor) for name, tensor in head.own_state().items()}
    for index, block in enumerate(target.blocks):
        own[f"blocks.{index}.attention_norm.weight"] += 1
        for name, tensor in block.named_parameters():
            if name.startswith("ffn"):
                own[f"blocks.{index}.{name}"] = tensor.clone()
    rms = (target.embed.weight.square().mean(-1) + config.norm_eps).sqrt().mean()
    own["blocks.0.attention.qkv.weight"][2 * size :, :size] = torch.eye(size)
    for index in range(target.num_layers):
        own[f"blocks.{index}.attention.qkv.bias"][: 2 * size] = SHARP
    own["blocks.0.attention.output.weight"][:] = rms * torch.eye(size)
    own["norm.weight"], rows = target.norm.weight.clone(), target.head.weight
    ids = head.draft_ids if head.draft_ids is None else ids_of(target)
    if ids is not None:
        head.draft_vocab.set_ids(ids)
        own["draft_ids"] = head.draft_ids
    own["head.weight"] = rows.clone() if ids is None else rows[ids].clone()
    generator = torch.Generator().manual_seed(SEED)
    for name in own:
        if name.startswith(("head", "blocks")) and "ffn." in name:
            drawn = torch.randn(own[name].shape, generator=generator, dtype=torch.float64).to(own[name])
            own[name] = own[name] + noise * own[name].std() * drawn
    head.load_own_state(own)
    return head


def ids_of(target):
    """A draft vocabulary: all but every seventh token."""
    return [token for token in range(target.vocab_size) if token % 7 != 6]


DRAFT_SIZE = len(ids_of(models.target()[1]))


@torch.no_grad()
def tiny(target):
    if target.config.rotary is None or target.head is None:
        return Eagle3Drafter(head=new_head(target, draft_vocab_size=min(40, target.vocab_size)))
    return Eagle3Drafter(head=echo(target, 0.03, draft_vocab_size=len(ids_of(target))))


@cache
def guessable_target():
    """A looping target whose embeddings are of one length, so that a norm of them loses nothing."""
    model = models.llama(12)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
        table = model.model.embed_tokens.weight
        table.div_(table.square().mean(-1, keepdim=True).sqrt()).mul_(0.2)
    return model, models.native(model)


OPTIONS = {
    "as published": {},
    "one tap": {"taps": (3,)},
    "five taps": {"taps": (3, 1, 0, 2, 1)},
    "joint norm": {"fc_norm": "joint"},
    "norm for each": {"fc_norm": "each", "norm_output": True},
    "norm before residual": {"norm_before_residual": True, "qk_norm": True},
    "two layers": {"num_layers": 2, "attention_bias": True, "num_heads": 2, "head_dim": 16, "ffn_size": 40},
    "few tokens": {"draft_vocab_size": DRAFT_SIZE, "rope_theta": 500.0},
    "parallel": {"mask_token_id": 7, "fc_norm": "each", "taps": (2, 0)},
    "of its own": {"hidden_size": 24, "own_embedding": True, "num_heads": 3, "head_dim": 8},
}


def head_of(name, target=None):
    target = target or models.target()[1]
    head = randomised(new_head(target, depth=DEEPEST, **OPTIONS[name]))
    if head.draft_vocab is not None:
        head.draft_vocab.set_ids(ids_of(target))
    return head


@pytest.mark.parametrize("options", OPTIONS)
def test_draft_logits_equal_training_logits(options):
    depths = check_parity(Eagle3Drafter(head=head_of(options)))
    assert depths == {1, 2, 3, 4}


@pytest.mark.parametrize("shape", ["bushy", "confident"])
@pytest.mark.parametrize("options", ["norm for each", "few tokens", "two layers"])
def test_draft_logits_of_trees_equal_training_logits(options, shape):
    assert {1, 2} <= check_parity(Eagle3Drafter(head=head_of(options), shape=SHAPES[shape]))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_cache_is_of_the_targets_features_at_verified_tokens(shape):
    check_cache(Eagle3Drafter(head=head_of("as published"), shape=SHAPES[shape]))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_outputs_are_the_references_whatever_the_head_says(options, shape):
    check_outputs(Eagle3Drafter(head=head_of(options), shape=SHAPES[shape]))


def test_tokens_outside_the_draft_vocabulary_are_never_drafted_and_can_follow():
    _, target = guessable_target()
    drafter = Eagle3Drafter(head=echo(target, draft_vocab_size=DRAFT_SIZE), draws=frozenset({Draw.IID}))
    asked = [request([7, 3, 5][: 1 + i], max_tokens=40, temperature=1.0, seed=i) for i in range(3)]
    result = run(drafter, "rejection", asked, target=target, k=3)
    accepted = [
        token
        for report in result.reports
        for tokens, num in zip(report.tokens, report.num_accepted, strict=True)
        for token in tokens[:num]
    ]
    assert accepted and not any(token % 7 == 6 for token in accepted)
    assert any(token % 7 == 6 for text in result.texts for token in text)


def test_an_output_that_it_was_trained_on_takes_the_fewest_steps():
    check_overfitted(Eagle3Drafter, new_head(models.target()[1], depth=4))


@pytest.mark.parametrize("shape", [Topology.branching((3, 2)), Confident(num_drafted=10, depth=3, width=4)], ids=str)
def test_trees_keep_more_than_chains_and_change_no_output(shape):
    model, target = guessable_target()
    asked = [request([7, 3, 5][: 1 + i], max_tokens=30) for i in range(3)]
    kept = []
    for one in (None, shape):
        drafter = Eagle3Drafter(head=echo(target, 0.06), shape=one)
        result = run(drafter, "coupled", asked, target=target, k=shape.depth)
        assert result.texts == [expected(r, model) for r in asked]
        kept.append(result.summary.mean_acceptance_length)
    assert kept[1] > kept[0] + 0.1


def test_a_sequence_of_one_token_has_no_draft_at_first():
    result = run(Eagle3Drafter(head=head_of("as published")), "coupled", [request([7], max_tokens=9)], k=3)
    assert result.reports[0].num_drafted == [0] and result.reports[1].num_drafted == [3]
    assert result.texts == [expected(request([7], max_tokens=9))]
