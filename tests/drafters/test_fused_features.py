"""Heads without attention draft a chain in one call of the kernel as they do token by token, in every precision."""

import copy

import pytest
import torch

from paceline.core.noise import Philox
from paceline.core.tree import Draw
from paceline.drafters import DRAFTERS
from paceline.drafters.tree.shapes import Topology
from paceline.engine.runner import ops_for
from paceline.models.backend import pack_weights
from paceline.models.cpu.decoder import CpuDecoder
from tests import tiny as models
from tests.drafters.feature_heads import fitted, new_head
from tests.drafters.fused import WAVES, check, check_ends_early, check_left_to_calls, native
from tests.harness import decoder_for, expected, request, run
from tests.kernels.cpu.test_fused_drafting import PROCESSING
from tests.models.layouts import pair

IDS = [token for token in range(64) if token % 3 != 1][:40]  # of draft vocabularies
HEADS = {
    "medusa": ("medusa", {}),
    "medusa without biases": ("medusa", dict(num_blocks=2, block_bias=False)),
    "medusa of shared parts": ("medusa", dict(num_blocks=2, shared_blocks=True, lm_head="shared", normalized=False)),
    "medusa by the target's LM head": ("medusa", dict(lm_head="target")),
    "medusa of a draft vocabulary": ("medusa", dict(draft_vocab_size=40, depth=5)),
    "mlp_speculator": ("mlp_speculator", dict(depth=4)),
    "mlp_speculator of another width": ("mlp_speculator", dict(depth=4, inner_size=24, scaled_input=True)),
    "mlp_speculator of tied stages": ("mlp_speculator", dict(depth=4, tied=True, normalized=False)),
    "mlp_speculator of a draft vocabulary": ("mlp_speculator", dict(depth=5, draft_vocab_size=40, scaled_input=True)),
    "hydra": ("hydra", {}),
    "hydra of shared blocks": ("hydra", dict(num_blocks=3, shared_blocks=True, head_bias=False)),
    "hydra without tokens": ("hydra", dict(grounded=False, num_blocks=2)),
    "hydra with a prefix layer": ("hydra", dict(prefix=True)),
    "hydra of a draft vocabulary": ("hydra", dict(draft_vocab_size=40, normalized=False)),
}
ONE_OF_EACH = ("medusa of a draft vocabulary", "mlp_speculator", "hydra of a draft vocabulary")


class OtherNoise(Philox):
    """The same noise, by a class that the kernel does not know."""


def head_for(target, name):
    """A head with noise on all that is its own, of the target in the decoder ``target``."""
    kind, sizes = HEADS[name]
    head = new_head(kind, target, seed=3, spread=0.3, **sizes).requires_grad_(False)
    if head.draft_vocab is not None:
        head.draft_vocab.set_ids(IDS)
    return head


def drafter_of(head, **options):
    return DRAFTERS.find(head.kind)(head=head, lm=CpuDecoder(head.decoder), **options)


@pytest.mark.each_value
@pytest.mark.parametrize("sampled", [0.0, 0.8])
@pytest.mark.parametrize("name", HEADS)
def test_drafts_are_those_of_single_calls(name, sampled):
    target = native()
    head = head_for(target.lm, name)
    check(lambda: drafter_of(head), target, sampled=sampled)


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("dtype", "waves"),
    [(torch.float32, WAVES), (torch.bfloat16, WAVES), (torch.bfloat16, ((0,),)), (torch.float16, WAVES)],
    ids=["float32", "bfloat16", "bfloat16, one row", "float16"],
)
@pytest.mark.parametrize("name", HEADS)
def test_drafts_of_packed_weights_are_those_of_single_calls(name, dtype, waves):
    """Rows come and go meanwhile; both ways multiply by the kernel."""
    lm = copy.deepcopy(models.target()[1]).to(dtype)
    lm.head = None if name == "medusa by the target's LM head" else lm.head  # tied to the embedding
    pack_weights(lm)
    head = head_for(lm, name)
    head.use_kernels()
    check(lambda: drafter_of(head), CpuDecoder(lm), sampled=0.8, waves=waves)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("medusa by the target's LM head", "granite"),  # which divides its logits
        ("medusa without biases", "gpt_neox"),
        ("mlp_speculator", "gpt_neox"),
        ("hydra", "gemma"),  # whose factor of embeddings is not of those that a head reads
        ("hydra of shared blocks", "olmo2"),
    ],
)
def test_drafts_for_targets_of_other_kinds_are_those_of_single_calls(name, layout):
    target = CpuDecoder(pair(layout, torch.float64)[1])
    head = head_for(target.lm, name)
    check(lambda: drafter_of(head), target, sampled=0.8)


@pytest.mark.parametrize("processing", ["different", "one"])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_logits_processors_are_of_the_target_s_tokens(name, processing):
    target = native()
    head = head_for(target.lm, name)
    check(lambda: drafter_of(head), target, sampled=0.8, processing=PROCESSING[processing])


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_chains_end_early_where_they_do_token_by_token(name):
    target = native()
    head = head_for(target.lm, name)
    check_ends_early(lambda: drafter_of(head), target)


@pytest.mark.parametrize("kind", ["medusa", "mlp_speculator", "hydra"])
def test_a_head_that_knows_its_target_is_accepted_as_often(kind):
    model, target = models.looping_target()
    head = fitted(kind, target, depth=4)
    _, summary = check(lambda: drafter_of(head), CpuDecoder(target), waves=WAVES)
    assert summary.mean_acceptance_length > 2.5
    asked = [request([7, 3, 5], max_tokens=20), request([11], max_tokens=20)]
    texts = run(drafter_of(head), "coupled", asked, target=CpuDecoder(target), k=4).texts
    assert texts == [expected(one, model) for one in asked]


@pytest.mark.parametrize("name", ONE_OF_EACH)
@pytest.mark.parametrize(
    ("verifier", "options"),
    [
        ("rejection", {"draws": frozenset({Draw.IID})}),
        ("coupled", {"shape": Topology.branching((2, 2))}),
    ],
    ids=["probabilities", "tree"],
)
def test_what_needs_the_logits_is_left_to_single_calls(name, verifier, options):
    target = native()
    drafter = drafter_of(head_for(target.lm, name), **options)
    check_left_to_calls(drafter, target, verifier=verifier, sampled=0.8)


def test_noise_that_the_kernel_does_not_draw_is_left_to_single_calls(monkeypatch):
    target, answers = native(), []
    drafter = drafter_of(head_for(target.lm, "hydra"))
    fuse = drafter.lm.draft_fused
    monkeypatch.setattr(drafter.lm, "draft_fused", lambda *args, **options: answers.append(fuse(*args, **options)))
    asked = [request([5, 9, 2], max_tokens=9, temperature=0.8, seed=1)]
    result = run(
        drafter, "coupled", asked, target=target, k=4, parts=dict(ops=ops_for(torch.device("cpu")), noise=OtherNoise())
    )
    assert set(answers) == {False} and result.summary.drafted[3] > 0


@torch.inference_mode()
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_weights_may_be_changed_or_moved(name):
    target = native()
    head = head_for(target.lm, name)
    drafter = drafter_of(head)
    parts = dict(ops=ops_for(torch.device("cpu")))
    decoder = decoder_for(drafter, "coupled", target=target, k=4, rows=2, parts=parts)
    decoder.admit([request([7, 3, 5], seed=1), request([1], seed=2)], [0, 1])
    fused, seen = drafter.growers, []
    for change in (None, "in place", "moved"):
        for part in head.own_state().values():
            if change and part.is_floating_point():
                new = part.flip(0)
                part.data = new.clone() if change == "moved" else part.data.copy_(new)
        drafts = []
        for growers in (fused, {depth: (grower, None) for depth, (grower, _) in fused.items()}):
            drafter.growers = growers
            drafts.append(drafter.propose(decoder.batch, decoder.plan()).tokens.tolist())
        assert drafts[0] == drafts[1]
        seen.append(drafts[0])
    assert seen[0] != seen[1] != seen[2]
