"""A small decoder over the target's last hidden states."""

import math

import pytest
import torch

from paceline.core.plan import StepPlan
from paceline.core.tree import Draw
from paceline.drafters.grow.shapes import Confident, Topology
from paceline.drafters.prophet import ProphetDrafter
from paceline.heads.prophet import ProphetConfig, ProphetHead
from paceline.models.base import Head
from tests import tiny as models
from tests.harness import decoder_for, expected, finish, request, run

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
            added = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype)
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
