"""Medusa heads over the target's last hidden state."""

import copy

import pytest
import torch

from paceline.core.step import StepPlan
from paceline.core.tree import Draw
from paceline.drafters.medusa import MedusaDrafter
from paceline.drafters.tree.shapes import Confident, Topology
from paceline.models.backend import fastest
from paceline.models.cpu.packed_weights import PackedLinear
from tests import tiny as models
from tests.drafters.feature_heads import fitted, new_head
from tests.drafters.last_states import check_steps, overfitted
from tests.harness import decoder_for, expected, request, run

pytestmark = pytest.mark.one_in(14)

FLOOR = 1.8  # mean acceptance length with noisy heads, greedy
SIZES = {
    "plain": {},
    "deep": {"num_blocks": 2, "block_bias": False},
    "shared": {"num_blocks": 2, "shared_blocks": True, "lm_head": "shared", "normalized": False},
    "target": {"lm_head": "target"},
}


def tiny(target):
    return MedusaDrafter(head=fitted("medusa", target))


def guessable_target():
    return models.looping_target()


@pytest.mark.parametrize("shape", [None, Topology.branching((2, 1, 2))], ids=["chain", "tree"])
@pytest.mark.parametrize("sizes", SIZES)
def test_states_and_distributions_of_drafts_are_those_of_the_training_layout(shape, sizes):
    _, target = models.target()
    head = new_head("medusa", target, spread=0.05, **SIZES[sizes])
    drafter = MedusaDrafter(head=head, draws=frozenset({Draw.IID}), shape=shape)
    accepted = check_steps(target, drafter, verifier="recursive", steps=12, temperature=1.0)
    assert {0, 1, 2} <= set(accepted)


def test_trees_are_accepted_more_often_than_chains():
    model, target = guessable_target()
    requests = [request(prompt, max_tokens=20) for prompt in ([7], [7, 3], [7, 3, 5], [11], [23], [42])]
    lengths = []
    for shape in (None, Topology.branching((3, 2, 1)), Confident(num_drafted=12, depth=3, width=3)):
        drafter = MedusaDrafter(head=fitted("medusa", target, noise=0.3), shape=shape)
        result = run(drafter, "coupled", requests, target=target, k=3)
        assert result.texts == [expected(r, model) for r in requests]
        lengths.append(result.summary.mean_acceptance_length)
    chain, tree, confident = lengths
    assert tree > chain + 0.3 and min(chain, confident) > FLOOR


@pytest.mark.parametrize("verifier", ["coupled", "recursive", "traversal"])
@pytest.mark.parametrize("shape", [None, Topology.branching((2, 2))], ids=["chain", "tree"])
def test_a_draft_vocabulary_limits_drafts_and_not_outputs(shape, verifier):
    model, target = guessable_target()
    head = new_head("medusa", target, draft_vocab_size=40)
    whole, ids = fitted("medusa", target).own_state(), torch.arange(1, 60)[-40:]
    head.load_own_state(
        {"draft_ids": ids, **{n: one[ids] if n.startswith("lm_heads") else one for n, one in whole.items()}}
    )
    drafter = MedusaDrafter(head=head, shape=shape)
    prompts = ([7], [7, 3], [7, 3, 5], [11])
    result = run(drafter, verifier, [request(p, max_tokens=20) for p in prompts], target=target, k=3)
    assert result.texts == [expected(request(p, max_tokens=20), model) for p in prompts]
    assert result.summary.mean_acceptance_length > 1.5
    decoder = decoder_for(drafter, verifier, target=target, k=3, rows=1)
    decoder.admit([request([7], temperature=2.0)], [0])
    for _ in range(5):
        tree = drafter.propose(decoder.batch, StepPlan(3))
        assert set(tree.tokens[0, 1:][tree.valid[0, 1:]].tolist()) <= set(ids.tolist())
        decoder.step()


def test_it_drafts_no_deeper_than_it_has_heads():
    _, target = models.target()
    drafter = MedusaDrafter(head=new_head("medusa", target, depth=2))
    requests = [request([7, 3], max_tokens=20)]
    result = run(drafter, "coupled", requests, k=5)
    assert result.texts == [expected(r) for r in requests]
    assert result.summary.drafted[1] > 0 and result.summary.drafted[2:] == [0, 0, 0]
    assert [drafter.max_nodes(asked) for asked in (0, 1, 2, 5)] == [1, 2, 3, 3]


@pytest.mark.parametrize("lm_head", ["own", "shared"])
def test_an_output_that_it_was_trained_on_takes_fewer_steps(lm_head):
    _, target = models.target()
    head = new_head("medusa", target, depth=3, num_blocks=2, lm_head=lm_head)
    prompt, length, _ = overfitted(head, target, steps=100, rate=0.02)
    result = run(MedusaDrafter(head=head), "coupled", [request(prompt, max_tokens=length)], k=3)
    assert result.summary.acceptance_rate > 0.7


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", SIZES)
def test_kernels_draft_what_torch_drafts(dtype, sizes):
    target = copy.deepcopy(guessable_target()[1]).to(dtype)
    head = new_head("medusa", target, spread=0.1, **SIZES[sizes])
    quick = copy.deepcopy(head).requires_grad_(False)
    quick.use_kernels()
    assert isinstance(quick.blocks[0][0], PackedLinear) == isinstance(quick.blocks[3][0], PackedLinear)
    drafts = []
    for one in (quick, head):
        drafter = MedusaDrafter(head=one)
        decoder = decoder_for(drafter, "coupled", target=fastest(target), k=4, rows=2)
        decoder.admit([request([7, 3, 5]), request([1])], [0, 1])
        drafts.append([drafter.propose(decoder.batch, StepPlan(4)).tokens.tolist()])
        decoder.step()
        drafts[-1].append(drafter.propose(decoder.batch, StepPlan(4)).tokens.tolist())
    assert drafts[0] == drafts[1]
    assert all(torch.equal(quick.own_state()[name], tensor) for name, tensor in head.own_state().items())
