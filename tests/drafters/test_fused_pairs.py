"""Heads over pairs draft a chain in one call of the kernel as they do token by token: texts, drafts, caches."""

from dataclasses import replace

import pytest
import torch

from paceline.core.early_stop import LEVELS, StopRule
from paceline.draft_heads.eagle import EagleConfig, EagleHead
from paceline.draft_heads.eagle3 import Eagle3Config, Eagle3Head
from paceline.draft_heads.mtp import MTPConfig, MTPHead
from paceline.drafters.eagle import EagleDrafter
from paceline.drafters.eagle3 import Eagle3Drafter
from paceline.drafters.mtp import MTPDrafter
from paceline.drafters.tree.fused_chain import FusedChain
from paceline.engine.runner import ops_for
from paceline.models.cpu.decoder import CpuDecoder
from tests import tiny as models
from tests.drafters.pairs import randomised
from tests.drafters.test_eagle3 import echo, ids_of
from tests.harness import decoder_for, finish, request
from tests.kernels.cpu.test_fused_drafting import NONE, PROCESSING

PROMPTS = ([5, 9, 2], [1], [17, 4, 33, 17, 4])
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
    "eagle with a first norm": ("eagle", dict(first_norm=True, fc_bias=False, normalized=False, num_layers=2)),
    "mtp": ("mtp", {}),
    "mtp with the embedding first": ("mtp", dict(embedding_first=True, zero_first=False, norm_output=False)),
    "mtp with queries and keys normalised": ("mtp", dict(qk_norm=True, normalized=True, norm_offset=True)),
}
RULE = StopRule(
    tuple(tuple(share * level / LEVELS for level in range(1, LEVELS + 1)) for share in (1.0, 0.9, 0.8)),
    (0.02, 0.05, 0.0),
)


def head_for(target, name):
    kind, options = HEADS[name]
    head, config, drafter = KINDS[kind]
    generator = torch.Generator().manual_seed(3)
    made = randomised(head.make(config(**options), target, generator=generator))
    if made.draft_vocab is not None:
        made.draft_vocab.set_ids([token for token in range(target.vocab_size) if token % 3 != 1][:40])
    return drafter, made


def drafted(drafter, target, *, fused, sampled=0.0, processing=NONE, rule=None, verifier="coupled"):
    """Trees, caches and notes of every step of a run, its texts, and the calls of the head's LM in each draft."""
    decoder = decoder_for(drafter, verifier, target=target, k=4, rows=3, parts=dict(ops=ops_for(torch.device("cpu"))))
    if not fused:
        drafter.growers = {depth: (grower, None) for depth, (grower, _) in drafter.growers.items()}
    asked = [
        replace(request(prompt, max_tokens=12 + 5 * row, temperature=sampled, seed=row), processing=processing[row])
        for row, prompt in enumerate(PROMPTS)
    ]
    steps, calls, counted = [], [], []
    propose, forward, fuse = drafter.propose, type(drafter.lm).__call__, drafter.lm.draft_fused

    def counting(self, *arguments, **options):
        if self is drafter.lm:
            counted.append("forward")
        return forward(self, *arguments, **options)

    def fusing(*arguments, **options):
        counted.append("fused")
        return fuse(*arguments, **options)

    def proposing(batch, plan):
        if rule is not None:
            batch.early_stop.plan(rule)
        counted.clear()
        tree = propose(batch, plan)
        calls.append(tuple(counted))
        cache = drafter.cache
        kept = [cache.storage.keys[:, row, : cache.length[row]] for row in range(3)]
        kept += [cache.storage.values[:, row, : cache.length[row]] for row in range(3)]
        notes, drawn = batch.early_stop.notes.tolist(), torch.where(tree.valid, tree.tokens, 0)
        steps.append((tree.valid.clone(), drawn, notes, [one.clone() for one in kept]))
        return tree

    drafter.propose = proposing
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(drafter.lm), "__call__", counting)
        patch.setattr(drafter.lm, "draft_fused", fusing)
        decoder.admit(asked, range(3))
        texts = finish(decoder, rows=[0, 1, 2], prompts=PROMPTS).texts
    return steps, texts, calls, decoder.stats.summary()


@torch.inference_mode()
def check(make, target, **options):
    fused = make()
    tolerance = 0 if isinstance(fused, Eagle3Drafter) else 1e-12
    steps, texts, calls, summary = drafted(fused, target, fused=True, **options)
    assert all(isinstance(chain, FusedChain) for _, chain in fused.growers.values())
    assert set(calls) == {("fused",)}, "one call drafts for all rows"
    wanted, others, slowly, other = drafted(make(), target, fused=False, **options)
    assert "fused" not in {one for call in slowly for one in call} and max(map(len, slowly)) > 2
    assert texts == others and summary == other
    for one, two in zip(steps, wanted, strict=True):
        assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1]) and one[2] == two[2]
        for mine, its in zip(one[3], two[3], strict=True):  # PyTorch joins a pair in another order of sums
            torch.testing.assert_close(mine, its, atol=tolerance, rtol=0)
    return steps, summary


def native(dtype=torch.float64):
    return CpuDecoder(models.target()[1].to(dtype))


@pytest.mark.parametrize("sampled", [0.0, 0.8])
@pytest.mark.parametrize("name", HEADS)
def test_drafts_are_those_of_single_calls(name, sampled):
    target = native()
    drafter, head = head_for(target.lm, name)
    steps, _ = check(lambda: drafter(head=head, lm=CpuDecoder(head.decoder)), target, sampled=sampled)
    assert any(bool((tokens[:, 1:] != 0).any()) for _, tokens, _, _ in steps)


@pytest.mark.parametrize("processing", ["different", "one"])
@pytest.mark.parametrize("name", ["eagle3 of a draft vocabulary", "mtp"])
def test_logits_processors_are_of_the_target_s_tokens(name, processing):
    target = native()
    drafter, head = head_for(target.lm, name)
    make = lambda: drafter(head=head, lm=CpuDecoder(head.decoder))  # noqa: E731
    check(make, target, sampled=0.8, processing=PROCESSING[processing])


@pytest.mark.parametrize("name", ["eagle3 of a draft vocabulary", "eagle"])
def test_chains_end_early_where_they_do_token_by_token(name):
    target = native()
    drafter, head = head_for(target.lm, name)
    steps, _ = check(lambda: drafter(head=head, lm=CpuDecoder(head.decoder)), target, sampled=0.8, rule=RULE)
    assert any(notes != [0, 0, 0] for _, _, notes, _ in steps)
    drafts = {int(count) - 1 for valid, _, _, _ in steps for count in valid.sum(-1)}
    assert drafts - {-1, 0, 4}, "no chain ended in the middle"


def test_a_head_that_knows_its_target_is_accepted_as_often():
    """Drafts that are accepted leave pairs of several tokens to read at once."""
    target = CpuDecoder(models.looping_target()[1])
    head = echo(target.lm, 0.03, draft_vocab_size=len(ids_of(target.lm)))
    _, summary = check(lambda: Eagle3Drafter(head=head, lm=CpuDecoder(head.decoder)), target)
    assert summary.mean_acceptance_length > 2


def test_parallel_drafts_are_left_to_single_calls():
    target = native()
    generator = torch.Generator().manual_seed(3)
    head = Eagle3Head.make(Eagle3Config(mask_token_id=3), target.lm, generator=generator)
    drafter = Eagle3Drafter(head=head, lm=CpuDecoder(head.decoder))
    _, texts, calls, _ = drafted(drafter, target, fused=True)
    assert all(chain is None for _, chain in drafter.growers.values())
    assert texts and "fused" not in {one for call in calls for one in call}
