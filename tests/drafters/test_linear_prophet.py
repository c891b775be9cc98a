"""Matrices over the target's last hidden state."""

import copy

import pytest
import torch

from paceline.core.step import StepPlan
from paceline.core.tree import Draw
from paceline.draft_heads.linear_prophet import LinearProphetConfig, LinearProphetHead
from paceline.drafters.linear_prophet import LinearProphetDrafter
from paceline.drafters.tree.shapes import Topology
from paceline.models.backend import fastest
from tests import tiny as models
from tests.drafters.last_states import check_steps, overfitted
from tests.harness import decoder_for, expected, request, run

STEPS, RIDGE = 40, 30.0
FLOOR = 2.7  # mean acceptance length on the conformance prompts, greedy


def new_head(target, *, seed=0, **sizes):
    config = LinearProphetConfig(**sizes)
    return LinearProphetHead.make(config, target, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def fitted(target):
    """Matrices that lead from each token's state to those of the tokens after it, where that one decides them.

    By least squares over what follows every token alone, so that tokens which sequences end in count the most.
    """
    head = new_head(target)
    tokens = torch.arange(target.vocab_size)
    output = target.causal(tokens[:, None], taps=head.taps)
    state, following = output.hidden[head.taps[0]][:, 0], output.logits[:, 0].argmax(-1)
    sequences = [tokens]
    for _ in range(STEPS + head.sizes.depth):
        sequences.append(following[sequences[-1]])
    begun = state[torch.cat(sequences[:STEPS])]
    read = target.norm(begun)
    maps = []
    for depth in range(1, head.sizes.depth + 1):
        missing = state[torch.cat(sequences[depth : depth + STEPS])] - begun
        square = read.T @ read + RIDGE * depth**2 * torch.eye(read.shape[1], dtype=read.dtype)
        maps.append(torch.linalg.solve(square, read.T @ missing).T)
    head.load_own_state({"maps.weight": torch.cat(maps)})
    return head


def tiny(target):
    return LinearProphetDrafter(head=fitted(target))


def guessable_target():
    return models.looping_target()


@pytest.mark.parametrize("shape", [None, Topology.branching((2, 1, 2))], ids=["chain", "tree"])
def test_states_and_distributions_of_drafts_are_those_of_the_training_layout(shape):
    _, target = models.target()
    drafter = LinearProphetDrafter(head=fitted(target), draws=frozenset({Draw.IID}), shape=shape)
    accepted = check_steps(target, drafter, verifier="recursive", temperature=1.0)
    assert {0, 1, 2} <= set(accepted)


def test_it_drafts_no_deeper_than_it_has_matrices():
    _, target = models.target()
    drafter = LinearProphetDrafter(head=new_head(target, depth=2))
    requests = [request([7, 3], max_tokens=20)]
    result = run(drafter, "coupled", requests, k=5)
    assert result.texts == [expected(r) for r in requests]
    assert result.summary.drafted[1] > 0 and result.summary.drafted[2:] == [0, 0, 0]
    assert [drafter.max_nodes(asked) for asked in (0, 1, 2, 5)] == [1, 2, 3, 3]


def test_an_output_that_it_was_trained_on_takes_fewer_steps():
    _, target = models.target()
    head = new_head(target, depth=3)
    prompt, length, _ = overfitted(head, target, steps=150, rate=0.01)
    result = run(LinearProphetDrafter(head=head), "coupled", [request(prompt, max_tokens=length)], k=3)
    assert result.summary.acceptance_rate > 0.7


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_drafts_what_the_eager_decoder_drafts(dtype):
    target = copy.deepcopy(guessable_target()[1]).to(dtype)
    head = new_head(target)
    quick = fastest(head.decoder)
    assert type(quick) is not type(head.decoder)
    drafts = []
    for lm in (quick, head.decoder):
        drafter = LinearProphetDrafter(head=head, lm=lm)
        decoder = decoder_for(drafter, "coupled", target=fastest(target), k=3, rows=2)
        decoder.admit([request([7, 3, 5]), request([1])], [0, 1])
        drafts.append([drafter.propose(decoder.batch, StepPlan(3)).tokens[0].tolist()])
        decoder.step()
        drafts[-1].append(drafter.propose(decoder.batch, StepPlan(3)).tokens.tolist())
    assert drafts[0] == drafts[1]
