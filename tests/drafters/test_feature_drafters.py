"""Drafters whose heads carry a state along the path: MLP speculators and Hydra, in chains and trees."""

import copy

import pytest
import torch

from paceline.core.step import StepPlan
from paceline.core.tree import Draw
from paceline.drafters import DRAFTERS
from paceline.drafters.tree.shapes import Confident, Topology
from paceline.models.backend import fastest
from tests import tiny as models
from tests.drafters.feature_heads import fitted, new_head
from tests.drafters.last_states import check_steps, overfitted
from tests.harness import decoder_for, expected, request, run

pytestmark = pytest.mark.one_in(14)

FLOORS = {"hydra": (1.6, 1.9), "mlp_speculator": (1.4, 2.3)}  # mean acceptance length of chains and trees, noisy heads
SIZES = [
    ("mlp_speculator", {}),
    ("mlp_speculator", {"depth": 4, "inner_size": 24, "scaled_input": True}),
    ("mlp_speculator", {"tied": True, "normalized": False}),
    ("hydra", {"depth": 3}),
    ("hydra", {"num_blocks": 3, "shared_blocks": True, "head_bias": False}),
    ("hydra", {"grounded": False, "num_blocks": 2}),
    ("hydra", {"prefix": True}),
]
every_kind = pytest.mark.parametrize("kind", FLOORS)
every_size = pytest.mark.parametrize(("kind", "sizes"), SIZES, ids=str)


def drafter_of(head, **options):
    return DRAFTERS.find(head.kind)(head=head, **options)


@pytest.mark.parametrize("shape", [None, Topology.branching((2, 1, 2))], ids=["chain", "tree"])
@every_size
def test_states_and_distributions_of_drafts_are_those_of_the_training_layout(kind, sizes, shape):
    _, target = models.target()
    head = new_head(kind, target, spread=0.05, **sizes)
    drafter = drafter_of(head, draws=frozenset({Draw.IID}), shape=shape)
    accepted = check_steps(target, drafter, verifier="recursive", steps=12, temperature=1.0)
    assert {0, 1} <= set(accepted)


@every_kind
def test_trees_are_accepted_more_often_than_chains(kind):
    model, target = models.looping_target()
    requests = [request(prompt, max_tokens=20) for prompt in ([7], [7, 3], [7, 3, 5], [11], [23], [42])]
    lengths = []
    for shape in (None, Topology.branching((3, 2, 1)), Confident(num_drafted=12, depth=3, width=3)):
        drafter = drafter_of(fitted(kind, target, noise=0.3), shape=shape)
        result = run(drafter, "coupled", requests, target=target, k=3)
        assert result.texts == [expected(r, model) for r in requests]
        lengths.append(result.summary.mean_acceptance_length)
    chain, tree, confident = lengths
    assert tree > chain + 0.1 and chain > FLOORS[kind][0] and min(tree, confident) > FLOORS[kind][1], lengths


@every_kind
def test_it_drafts_no_deeper_than_it_has_stages(kind):
    _, target = models.target()
    drafter = drafter_of(new_head(kind, target, depth=2))
    requests = [request([7, 3], max_tokens=20)]
    result = run(drafter, "coupled", requests, k=5)
    assert result.texts == [expected(r) for r in requests]
    assert result.summary.drafted[1] > 0 and result.summary.drafted[2:] == [0, 0, 0]


@every_kind
def test_an_output_that_it_was_trained_on_takes_fewer_steps(kind):
    _, target = models.target()
    head = new_head(kind, target, depth=3)
    prompt, length, _ = overfitted(head, target, steps=100, rate=0.02)
    result = run(drafter_of(head), "coupled", [request(prompt, max_tokens=length)], k=3)
    assert result.summary.acceptance_rate > 0.7


@every_kind
def test_a_draft_vocabulary_limits_drafts_and_not_outputs(kind):
    model, target = models.looping_target()
    head, whole, ids = new_head(kind, target, draft_vocab_size=40), fitted(kind, target), torch.arange(20, 60)
    assert head.sizes.depth == whole.sizes.depth
    state = {name: one[ids] if name.startswith("lm_heads") else one for name, one in whole.own_state().items()}
    head.load_own_state({**state, "draft_ids": ids})
    requests = [request(p, max_tokens=20) for p in ([7], [7, 3], [7, 3, 5], [11])]
    result = run(drafter_of(head), "coupled", requests, target=target, k=3)
    assert result.texts == [expected(one, model) for one in requests]
    assert result.summary.mean_acceptance_length > 1.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@every_size
def test_kernels_draft_what_torch_drafts(kind, sizes, dtype):
    target = copy.deepcopy(models.looping_target()[1]).to(dtype)
    head = new_head(kind, target, spread=0.1, **sizes)
    quick = copy.deepcopy(head).requires_grad_(False)
    quick.use_kernels()
    drafts = []
    for one in (quick, head):
        drafter = drafter_of(one)
        decoder = decoder_for(drafter, "coupled", target=fastest(target), k=4, rows=2)
        decoder.admit([request([7, 3, 5]), request([1])], [0, 1])
        drafts.append([drafter.propose(decoder.batch, StepPlan(4)).tokens.tolist()])
        decoder.step()
        drafts[-1].append(drafter.propose(decoder.batch, StepPlan(4)).tokens.tolist())
    assert drafts[0] == drafts[1]
