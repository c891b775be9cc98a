"""Grows a chain by a model that runs ahead by itself. Knows no model and no cache.

B rows, D depth, V vocabulary.
"""

from collections.abc import Callable
from typing import TypeAlias, final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.tree import NoDraft
from paceline.drafters.grow.base import Grower, Grown, Read
from paceline.drafters.grow.topology import TopologyGrower

Run: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]
"""(logits [B, 1, V] after the root, tokens [B, 1 + D] to be written, valid [B, 1 + D]): see models/base.Ahead."""


@final
class ChainGrower(Grower):
    """What ``plain`` grows, tokens that ``run`` picks; ``plain`` itself where that cannot pick as it does."""

    def __init__(self, plain: TopologyGrower, run: Run) -> None:
        self.plain, self.run = plain, run
        self.num_read = plain.num_read

    def grow(self, batch: Batch, logits: Tensor, room: Tensor, read: Read, blame: NoDraft) -> Grown:
        if torch.compiler.is_compiling() or not batch.likeliest:
            return self.plain.grow(batch, logits, room, read, blame)
        within = self.plain.depths <= room[:, None]  # [B, D]
        valid = torch.cat([batch.active[:, None], within & batch.active[:, None]], dim=1)
        tokens = torch.zeros_like(valid, dtype=torch.int64)
        tokens[:, 0] = batch.root
        self.run(logits, tokens, valid)
        tree = self.plain.frame.tree(tokens, valid, blame=blame)
        return Grown(tree=tree, slots=self.plain.slots.expand_as(tokens))
