"""Heads over pairs draft a chain in one call of the kernel as they do token by token: texts, drafts, caches."""

import copy

import pytest
import torch

from paceline.draft_heads.eagle import EagleConfig, EagleHead
from paceline.draft_heads.eagle3 import Eagle3Config, Eagle3Head
from paceline.draft_heads.mtp import MTPConfig, MTPHead
from paceline.drafters import hidden_states
from paceline.drafters.eagle import EagleDrafter
from paceline.drafters.eagle3 import Eagle3Drafter
from paceline.drafters.mtp import MTPDrafter
from paceline.models.backend import pack_weights
from paceline.models.cpu.decoder import CpuDecoder
from tests import tiny as models
from tests.drafters.fused import WAVES, check, check_ends_early, check_left_to_calls, native, with_draft_ids
from tests.drafters.pairs import randomised
from tests.drafters.test_eagle3 import echo, ids_of
from tests.harness import decoder_for, request
from tests.kernels.cpu.test_fused_drafting import PROCESSING

KINDS = {
    "eagle3": (Eagle3Head, Eagle3Config, Eagle3Drafter),
    "eagle": (EagleHead, EagleConfig, EagleDrafter),
    "mtp": (MTPHead, MTPConfig, MTPDrafter),
}
HEADS = {
    "eagle3": ("eagle3", {}),
    "eagle3 of a draft vocabulary": ("eagle3", dict(draft_vocab_size=40)),
    "eagle3 with normalised streams": ("eagle3", dict(norm_before_residual=True, norm_output=True, num_layers=2)),
    "eagle3 with joint norm": ("eagle3", dict(fc_norm="joint", qk_norm=True, norm_offset=True)),
    "eagle3 with a norm each": ("eagle3", dict(fc_norm="each", attention_bias=True, output_bias=True)),
    "eagle3 of another width": (
        "eagle3",
        dict(hidden_size=24, own_embedding=True, draft_vocab_size=40, num_heads=2, head_dim=8),
    ),
    "eagle": ("eagle", {}),
    "eagle of a draft vocabulary": ("eagle", dict(draft_vocab_size=40)),
    "eagle with a first norm": ("eagle", dict(first_norm=True, fc_bias=False, normalized=False, num_layers=2)),
    "mtp": ("mtp", {}),
    "mtp of a draft vocabulary": ("mtp", dict(draft_vocab_size=40)),
    "mtp with the embedding first": ("mtp", dict(embedding_first=True, zero_first=False, norm_output=False)),
    "mtp with queries and keys normalised": ("mtp", dict(qk_norm=True, normalized=True, norm_offset=True)),
}


def head_for(target, name):
    kind, options = HEADS[name]
    head, config, drafter = KINDS[kind]
    generator = torch.Generator().manual_seed(3)
    return drafter, with_draft_ids(randomised(head.make(config(**options), target, generator=generator)), target)


def check_pairs(make, target, **options):
    """PyTorch joins a pair, where a matrix does that, in another order of sums."""
    return check(make, target, tolerance=0 if isinstance(make(), Eagle3Drafter) else 1e-12, **options)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("sampled", [0.0, 0.8])
@pytest.mark.parametrize("name", HEADS)
def test_drafts_are_those_of_single_calls(name, sampled):
    target = native()
    drafter, head = head_for(target.lm, name)
    check_pairs(lambda: drafter(head=head, lm=CpuDecoder(head.drafting_decoder)), target, sampled=sampled)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["eagle3 of a draft vocabulary", "eagle", "mtp of a draft vocabulary"])
def test_drafts_of_packed_weights_are_those_of_single_calls(name, dtype):
    """Rows come and go meanwhile. What is read differs by a few roundings where PyTorch joins a pair."""
    target = native(dtype)
    pack_weights(target.lm)
    drafter, head = head_for(target.lm, name)
    head.requires_grad_(False)
    pack_weights(head.decoder, beside=target.lm)
    head.use_kernels()
    tolerance = 0 if drafter is Eagle3Drafter else 32 * torch.finfo(dtype).eps
    make = lambda: drafter(head=head, lm=CpuDecoder(head.drafting_decoder))  # noqa: E731
    check(make, target, tolerance=tolerance, sampled=0.8, waves=WAVES)


@pytest.mark.parametrize("processing", ["different", "one"])
@pytest.mark.parametrize("name", ["eagle3 of a draft vocabulary", "mtp", "mtp of a draft vocabulary"])
def test_logits_processors_are_of_the_target_s_tokens(name, processing):
    target = native()
    drafter, head = head_for(target.lm, name)
    make = lambda: drafter(head=head, lm=CpuDecoder(head.drafting_decoder))  # noqa: E731
    check_pairs(make, target, sampled=0.8, processing=PROCESSING[processing])


@pytest.mark.parametrize("name", ["eagle3 of a draft vocabulary", "eagle of a draft vocabulary"])
def test_chains_end_early_where_they_do_token_by_token(name):
    target = native()
    drafter, head = head_for(target.lm, name)
    tolerance = 0 if drafter is Eagle3Drafter else 1e-12
    check_ends_early(lambda: drafter(head=head, lm=CpuDecoder(head.drafting_decoder)), target, tolerance=tolerance)


@pytest.mark.parametrize("few", [hidden_states.FEW, 0])
def test_kernels_make_the_features_that_torch_makes(few, monkeypatch):
    """Of a prompt, and of the few tokens of a step, among which are others."""
    monkeypatch.setattr(hidden_states, "FEW", few)
    target = native(torch.float32)
    head = randomised(Eagle3Head.make(Eagle3Config(), target.lm, generator=torch.Generator().manual_seed(3)))
    quick = copy.deepcopy(head).requires_grad_(False)
    quick.use_kernels()
    found = []
    for one in (head, quick):
        drafter = Eagle3Drafter(head=one)
        decoder = decoder_for(drafter, "coupled", target=target, k=3, rows=2)
        decoder.admit([request([7, 3, 5, 2]), request([1, 4])], [0, 1])
        for _ in range(3):
            decoder.step()
        cache, lengths = drafter.cache.storage, drafter.cache.length.tolist()
        keys = [cache.keys[:, row, :length] for row, length in enumerate(lengths)]
        found.append([*keys, drafter.unread.states[:, 0].clone()])
        assert min(lengths) >= 3
    torch.testing.assert_close(*found, rtol=0, atol=1e-5)
    assert min(float(one.abs().amax()) for one in found[0]) > 0.1


def test_a_head_that_knows_its_target_is_accepted_as_often():
    """Drafts that are accepted leave pairs of several tokens to read at once."""
    target = CpuDecoder(models.looping_target()[1])
    head = echo(target.lm, 0.03, draft_vocab_size=len(ids_of(target.lm)))
    _, summary = check_pairs(lambda: Eagle3Drafter(head=head, lm=CpuDecoder(head.drafting_decoder)), target)
    assert summary.mean_acceptance_length > 2


def test_parallel_drafts_are_left_to_single_calls():
    target = native()
    generator = torch.Generator().manual_seed(3)
    head = Eagle3Head.make(Eagle3Config(mask_token_id=3), target.lm, generator=generator)
    drafter = Eagle3Drafter(head=head, lm=CpuDecoder(head.drafting_decoder))
    check_left_to_calls(drafter, target)
