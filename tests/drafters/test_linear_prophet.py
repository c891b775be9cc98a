"""Matrices over the target's last hidden state."""

import torch

from paceline.drafters.linear_prophet import LinearProphetDrafter
from paceline.heads.linear_prophet import LinearProphetConfig, LinearProphetHead
from tests import tiny as models

FLOOR = 1.0  # mean acceptance length on the conformance prompts, greedy


def new_head(target, *, seed=0, **sizes):
    config = LinearProphetConfig(**sizes)
    return LinearProphetHead.make(config, target, generator=torch.Generator().manual_seed(seed))


def tiny(target):
    return LinearProphetDrafter(head=new_head(target))


def guessable_target():
    return models.looping_target()
