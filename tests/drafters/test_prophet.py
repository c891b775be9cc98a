"""A small decoder over the target's last hidden states."""

import copy
import math

import pytest
import torch

from paceline.core.admission import Prefix
from paceline.core.step import StepPlan
from paceline.core.tree import Draw
from paceline.draft_heads.prophet import ProphetConfig, ProphetHead
from paceline.drafters.prophet import ProphetDrafter
from paceline.drafters.tree.shapes import Confident, Topology
from paceline.engine.runner import ops_for
from paceline.models.backend import fastest
from paceline.models.base import FusedDrafting
from tests import tiny as models
from tests.drafters.last_states import check_steps, overfitted, whole
from tests.harness import Alternating, decoder_for, expected, request, run

SEED = 5
FLOOR = 3.2  # mean acceptance length on the conformance prompts, greedy


def new_head(target, *, seed=0, **sizes):
    config = ProphetConfig(**{"norm_eps": target.config.norm_eps, **sizes})
    return ProphetHead.make(config, target, generator=torch.Generator().manual_seed(seed))


def echo(target, noise=0.0, **sizes):
    """A prophet whose blocks are the target's, with noise on them: an oracle where the last token decides the next."""
    head = new_head(target, num_blocks=target.num_layers, **sizes)
    own, generator = head.own_state(), torch.Generator().manual_seed(SEED)
    for name, tensor in target.state_dict().items():
        if f"decoder.{name}" in own:
            added = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)
            own[f"decoder.{name}"] = tensor + noise * tensor.std() * added
    head.load_own_state(own)
    return head


@torch.no_grad()
def tiny(target):
    if target.config.rotary is None:  # blocks of another kind than the prophet's
        return ProphetDrafter(head=new_head(target))
    return ProphetDrafter(head=echo(target, 0.1))


def guessable_target():
    return models.looping_target()


SHAPES = {"chain": None, "tree": Topology.branching((2, 1, 2))}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sizes", [{}, {"num_states": 3, "num_blocks": 2}, {"width": 24, "num_states": 1}], ids=str)
def test_states_and_distributions_of_drafts_are_those_of_the_training_layout(shape, sizes):
    """After accepted lengths of every kind, from sequences shorter than the states on, in float64."""
    _, target = models.target()
    drafter = ProphetDrafter(head=new_head(target, **sizes), draws=frozenset({Draw.IID}), shape=SHAPES[shape])
    accepted = check_steps(target, drafter, verifier="recursive", temperature=1.0)
    assert {0, 1, 2} <= set(accepted)


def decode_all(decoder):
    """Tokens of all rows, and how many each took of the draft in each step."""
    found = []
    while bool(decoder.batch.active.any()):
        decoder.step()
        report = decoder.results()
        found.append((report.tokens, report.num_accepted))
    return found


def test_deeper_drafts_than_it_learned_go_on_in_the_same_way():
    _, target = models.target()
    short, long = (new_head(target, depth=depth) for depth in (2, 5))
    long.load_own_state(short.own_state())
    drafter = ProphetDrafter(head=short, draws=frozenset({Draw.IID}))
    taught = ProphetDrafter(head=long, draws=frozenset({Draw.IID}))
    results = [
        run(one, "rejection", [request([7, 3], max_tokens=20, temperature=1.0, seed=4)], k=5)
        for one in (drafter, taught)
    ]
    assert results[0].texts == results[1].texts
    assert results[0].summary == results[1].summary
    assert results[0].summary.drafted[4] > 0


def test_an_output_that_it_was_trained_on_takes_the_fewest_steps():
    """The states are what tells one place of the sequence from another, and every draft begins with them."""
    _, target = models.target()
    head = new_head(target, num_blocks=1, depth=4)
    prompt, length, loss = overfitted(head, target, steps=60, rate=0.01)
    assert loss < 0.1
    result = run(ProphetDrafter(head=head), "coupled", [request(prompt, max_tokens=length)], k=3)
    assert result.steps <= math.ceil(length / 4) + 1
    assert result.summary.acceptance_rate > 0.9


@pytest.mark.parametrize("shape", [Topology.branching((3, 2)), Confident(num_drafted=10, depth=3, width=4)], ids=str)
def test_trees_keep_more_than_chains_and_change_no_output(shape):
    model, target = guessable_target()
    requests = [request([7, 3, 5][: 1 + i], max_tokens=30) for i in range(3)]
    kept = []
    for one in (None, shape):
        result = run(
            ProphetDrafter(head=echo(target, 0.3), shape=one), "coupled", requests, target=target, k=shape.depth
        )
        assert result.texts == [expected(r, model) for r in requests]
        kept.append(result.summary.mean_acceptance_length)
    assert kept[1] > kept[0] + 0.1


def test_states_are_kept_through_steps_without_drafts():
    _, target = models.target()
    drafter = ProphetDrafter(head=new_head(target))
    decoder = decoder_for(drafter, "coupled", plan=Alternating(0, 0, 0, 3, 1, most=4), rows=2)
    prompts = [[7, 3, 5], [1, 4, 4]]
    decoder.admit([request(p, max_tokens=20) for p in prompts], [0, 1])
    for _ in range(9):
        decoder.step()
        for row in range(2):
            sequence = decoder.batch.tokens[row, : decoder.batch.length[row]].tolist()
            states, _ = whole(target, drafter.head, sequence)
            torch.testing.assert_close(drafter.states.states[row], states[-3:-1])


def test_a_row_that_forks_begins_with_the_states_of_its_own_output():
    """Prefixes of every length, beside rows that read more or nothing; the last states are read again."""
    _, target = models.target()
    drafter = ProphetDrafter(head=new_head(target, num_states=3))
    decoder = decoder_for(drafter, "coupled", target=target, rows=4)
    first = request([7, 3, 5, 60, 2, 2, 9], max_tokens=6)
    decoder.admit([first], [0])
    while bool(decoder.batch.active.any()):
        decoder.step()
    known = [*first.tokens, *expected(first)]
    sequences = [[*known, 4], [*known[:4], 8, 8, 8, 8, 8, 8], known[:2]]
    prefixes = [Prefix(row=0, length=len(known) - 1), Prefix(row=0, length=4), Prefix(row=0, length=1)]
    decoder.admit([request(sequence, max_tokens=4) for sequence in sequences], [1, 2, 3], prefixes)
    for row, sequence in zip([1, 2, 3], sequences, strict=True):
        states, _ = whole(target, drafter.head, sequence)
        padded = torch.cat((states.new_zeros(3, states.shape[-1]), states[:-1]))
        torch.testing.assert_close(drafter.states.states[row], padded[-3:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [None, 24])
def test_the_kernel_drafts_what_the_eager_decoder_drafts(dtype, width):
    """Chains run ahead in the kernel, the same for the same sequence."""
    target = copy.deepcopy(guessable_target()[1]).to(dtype)
    head = echo(target, 0.1) if width is None else new_head(target, width=width)
    quick, parts = fastest(target), dict(ops=ops_for(torch.device("cpu")))
    drafts, sequences = [], []
    for lm in (fastest(head.decoder), head.decoder):
        drafter = ProphetDrafter(head=head, lm=lm)
        decoder = decoder_for(drafter, "coupled", target=quick, parts=parts, k=4, rows=3)
        decoder.admit([request([7, 3, 5][: 1 + i], max_tokens=30) for i in range(3)], range(3))
        drafts.append(drafter.propose(decoder.batch, StepPlan(4)).tokens.tolist())
        sequences.append(decode_all(decoder))
    assert isinstance(fastest(head.decoder), FusedDrafting)
    assert drafts[0] == drafts[1] and sequences[0] == sequences[1]
