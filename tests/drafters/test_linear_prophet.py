"""Matrices over the target's last hidden state."""

import torch

from paceline.drafters.linear_prophet import LinearProphetDrafter
from paceline.heads.linear_prophet import LinearProphetConfig, LinearProphetHead
from tests import tiny as models

STEPS, RIDGE = 40, 30.0
FLOOR = 2.7  # mean acceptance length on the conformance prompts, greedy


def new_head(target, *, seed=0, **sizes):
    config = LinearProphetConfig(**sizes)
    return LinearProphetHead.make(config, target, generator=torch.Generator().manual_seed(seed))


def fitted(target):
    """Matrices that lead from each token's state to those of the tokens after it, where that one decides them.

    By least squares over what follows every token alone, so that tokens which texts end in count the most.
    """
    head = new_head(target)
    tokens = torch.arange(target.vocab_size)
    output = target.causal(tokens[:, None], taps=head.taps)
    state, following = output.hidden[head.taps[0]][:, 0], output.logits[:, 0].argmax(-1)
    texts = [tokens]
    for _ in range(STEPS + head.sizes.depth):
        texts.append(following[texts[-1]])
    begun = state[torch.cat(texts[:STEPS])]
    read = target.norm(begun)
    maps = []
    for depth in range(1, head.sizes.depth + 1):
        missing = state[torch.cat(texts[depth : depth + STEPS])] - begun
        square = read.T @ read + RIDGE * depth**2 * torch.eye(read.shape[1], dtype=read.dtype)
        maps.append(torch.linalg.solve(square, read.T @ missing).T)
    head.load_own_state({"maps.weight": torch.cat(maps)})
    return head


@torch.no_grad()
def tiny(target):
    return LinearProphetDrafter(head=fitted(target))


def guessable_target():
    return models.looping_target()
