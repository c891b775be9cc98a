"""A drafter that leaves the target early: what it drafts, what it keeps, and what verification is told."""

import math

import pytest
import torch

from paceline.drafters.early_exit import EarlyExitDrafter
from paceline.heads.early_exit import EarlyExitConfig, EarlyExitHead
from tests import tiny as models
from tests.harness import request, run

FOLLOWS = True
FLOOR = 1.9  # mean acceptance length on the conformance prompts, greedy


def head_of(target, *, scale=0.0, exit_layer=1, seed=0, **options):
    """A head whose blocks and norm are the target's own behind the exit, with noise of ``scale``."""
    source = models.noisy(target, scale) if scale else target
    config = EarlyExitConfig(exit_layer=exit_layer, num_blocks=target.num_layers - exit_layer, **options)
    head = EarlyExitHead.make(config, target, generator=torch.Generator().manual_seed(seed))
    copies = {
        f"blocks.{index}.{name}": value
        for index, block in enumerate(source.blocks[exit_layer:])
        for name, value in block.named_parameters()
    }
    copies |= {f"norm.{name}": value for name, value in source.norm.named_parameters()}
    head.load_own_state({**head.own_state(), **copies})
    return head


def tiny(target):
    """The oracle: the rest of the target with noise on its weights."""
    return EarlyExitDrafter(head=head_of(target, scale=0.12))


def itself(**options):
    return EarlyExitDrafter(head=head_of(models.target()[1]), **options)


@pytest.mark.parametrize("verifier", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_draft_equal_to_target_takes_the_fewest_steps(verifier, temperature, k):
    requests = [request([7, 3, 5][: 1 + i], max_tokens=23, temperature=temperature, seed=i) for i in range(3)]
    result = run(itself(), verifier, requests, k=k)
    assert result.steps == math.ceil(23 / (k + 1))
    assert result.summary.acceptance_rate == 1.0
