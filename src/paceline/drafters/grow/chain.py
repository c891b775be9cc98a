"""Grows a chain by a model that runs ahead by itself. Knows no model and no cache.

B rows, D depth, V vocabulary.
"""

from typing import Protocol, final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.tree import NoDraft
from paceline.drafters.grow.base import Grower, Grown, Read
from paceline.drafters.grow.topology import TopologyGrower


class Run(Protocol):
    """Picks and reads a chain: see models/base.Ahead."""

    def __call__(self, batch: Batch, logits: Tensor, tokens: Tensor, valid: Tensor, *, greedy: bool) -> bool: ...


@final
class ChainGrower(Grower):
    """The chains that ``plain`` grows, by ``run``; by ``plain`` itself where that cannot.

    Tokens are the batch's own picks, or where ``greedy`` the likeliest.
    """

    def __init__(self, plain: TopologyGrower, run: Run, *, greedy: bool) -> None:
        self.plain, self.run, self.greedy = plain, run, greedy
        self.num_read = plain.num_read

    def grow(self, batch: Batch, logits: Tensor, room: Tensor, read: Read, blame: NoDraft) -> Grown:
        active = batch.active[:, None]
        valid = torch.cat([active, (self.plain.depths <= room[:, None]) & active], dim=1)
        tokens = torch.zeros_like(valid, dtype=torch.int64)
        tokens[:, 0] = batch.root
        if not self.run(batch, logits, tokens, valid, greedy=self.greedy):
            return self.plain.grow(batch, logits, room, read, blame)
        tree = self.plain.frame.tree(tokens, valid, blame=blame)
        return Grown(tree=tree, slots=self.plain.slots.expand_as(tokens))
