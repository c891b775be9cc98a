"""A drafter that leaves the target early: how far its drafts go, and which targets it refuses."""

import math

import pytest
import torch

from paceline.core.tree import Draw
from paceline.draft_heads.early_exit import EarlyExitConfig, EarlyExitHead
from paceline.drafters.early_exit import EarlyExitDrafter
from paceline.drafters.tree.shapes import Confident, Topology
from paceline.models.adapter.adapt import adapt
from tests import tiny as models
from tests.drafters.test_tree_growers import PROMPTS, requests
from tests.engine.wrapped import Counted
from tests.harness import Alternating, decoder_for, expected, request, run

FOLLOWS = True
FLOOR = 2.5  # mean acceptance length on the conformance prompts, greedy

SHAPES = {
    "chain": None,
    "bushy": Topology(((0,), (1,), (2,), (0, 0), (1, 0), (1, 1), (0, 0, 0))),
    "binary": Topology.branching((2, 2, 2)),
    "confident": Confident(num_drafted=7, depth=3, width=2),
    "confident, few": Confident(num_drafted=2, depth=3, width=3),
}
CASES = [(name, draw) for name, shape in SHAPES.items() for draw in (Draw if shape is None else sorted(shape.draws))]
every_case = pytest.mark.parametrize(("name", "draw"), CASES, ids=lambda value: getattr(value, "name", value))
every_shape = pytest.mark.parametrize("name", SHAPES)


def head_of(target, *, scale=0.0, exit_layer=1, seed=0, num_blocks=None, **options):
    """A head whose blocks and norm are the target's own behind the exit, with noise of ``scale``."""
    source = models.noisy(target, scale) if scale else target
    num_blocks = target.num_layers - exit_layer if num_blocks is None else num_blocks
    config = EarlyExitConfig(exit_layer=exit_layer, num_blocks=num_blocks, **options)
    head = EarlyExitHead.make(config, target, generator=torch.Generator().manual_seed(seed))
    copies = {
        f"blocks.{index}.{name}": value
        for index, block in enumerate(source.blocks[exit_layer : exit_layer + num_blocks])
        for name, value in block.named_parameters()
    }
    copies |= {f"norm.{name}": value for name, value in source.norm.named_parameters() if head.options.own_norm}
    head.load_own_state({**head.own_state(), **copies})
    return head


def tiny(target):
    """The oracle: the rest of the target with noise on its weights."""
    return EarlyExitDrafter(head=head_of(target, scale=0.12))


def itself(**options):
    return EarlyExitDrafter(head=head_of(models.target()[1]), **options)


def recycling(target=None, *, num_blocks=2, scale=0.3):
    """A head whose recycled part says something, though nothing in particular; it is no older than 2."""
    head = head_of(target or models.target()[1], num_blocks=num_blocks, recycle=True, max_age=2)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for part in (head.recycle.weight, head.recycle.ages):
            part.copy_(scale * torch.randn(part.shape, generator=generator))
    return head


HEADS = {
    "plain": lambda: head_of(models.target()[1], scale=0.12),
    "late": lambda: head_of(models.target()[1], scale=0.2, exit_layer=2),
    "no blocks": lambda: head_of(models.target()[1], exit_layer=2, num_blocks=0),
    "own head": lambda: head_of(models.target()[1], scale=0.12, own_head=True),
    "shared norm": lambda: head_of(models.target()[1], scale=0.12, own_norm=False),
    "recycled": recycling,
    "recycled, no blocks": lambda: recycling(num_blocks=0),
}
every_head = pytest.mark.parametrize("kind", HEADS)
few = [(kind, name) for kind in HEADS for name in SHAPES if kind in ("plain", "recycled") or name == "chain"]
every_head_and_some_shapes = pytest.mark.parametrize(("kind", "name"), few)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["bushy", "binary"])
def test_a_tree_by_the_target_itself_takes_the_fewest_steps(name, temperature):
    asked = [request(p, max_tokens=24, temperature=temperature, seed=i) for i, p in enumerate(PROMPTS)]
    result = run(itself(shape=SHAPES[name], draws=frozenset({Draw.SHARED})), "coupled", asked, k=3)
    assert result.texts == [expected(one) for one in asked]
    assert result.steps == math.ceil(24 / 4)


def test_step_without_drafts_runs_neither_shared_layers_nor_head():
    target = Counted(models.target()[1])
    head = head_of(models.target()[1])
    drafter = EarlyExitDrafter(head=head, lm=Counted(head.decoder))
    decoder = decoder_for(drafter, "coupled", target=target, plan=Alternating(0), rows=len(PROMPTS))
    decoder.admit(requests(), range(len(PROMPTS)))
    for lm in (target, drafter.lm):
        lm.take()
    for _ in range(6):
        decoder.step()
        assert (target.take(), drafter.lm.take()) == (len(PROMPTS), 0)


@pytest.mark.one_in(4)
@every_head_and_some_shapes
def test_the_outputs_are_the_references_whatever_the_head_says(kind, name):
    asked = requests(max_tokens=16)
    result = run(EarlyExitDrafter(head=HEADS[kind](), shape=SHAPES[name]), "coupled", asked, k=3)
    assert result.texts == [expected(one) for one in asked]
    assert sum(result.summary.accepted) > 0


def test_a_target_that_runs_whole_or_not_at_all_is_refused():
    with pytest.raises(ValueError, match=r"runs all of its layers: .* backend='native'"):
        decoder_for(itself(), "coupled", target=adapt(models.target()[0]), k=3)


def test_a_shape_whose_tokens_cannot_be_drawn_so_is_refused():
    with pytest.raises(ValueError, match="a Confident tree has tokens that are fixed, not iid"):
        itself(shape=SHAPES["confident"], draws=frozenset({Draw.IID}))


def test_memory_of_a_slot_is_that_of_the_heads_blocks_and_of_what_is_recycled():
    slots = [EarlyExitDrafter(head=HEADS[kind]()).slot_bytes for kind in ("plain", "no blocks", "recycled, no blocks")]
    assert slots == [2 * 2 * 2 * 8 * 8, 0, 32 * 8]
