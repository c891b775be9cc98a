"""A rule that lets no row get ahead of another: all keep as many drafts as the row that keeps fewest.

B rows, N nodes, D path depth, V vocabulary.
"""

from typing import ClassVar, final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.tree import Draw, Outcome, Tree
from paceline.verifiers.coupled import Coupled


@final
class LockStep:
    """``coupled``, cut to the least that any active row accepts; chains only.

    A row that is cut goes on with its own token at that place, which is the one that it had accepted there. So texts
    are those of plain decoding, and rows that began together stay together.
    """

    lossless: ClassVar[bool] = True
    same_tokens: ClassVar[bool] = True
    wants: ClassVar[tuple[Draw, ...]] = Coupled.wants
    branches: ClassVar[bool] = False

    def __init__(self) -> None:
        self.rule = Coupled()

    def __call__(self, tree: Tree, logits: Tensor, batch: Batch) -> Outcome:
        """What ``coupled`` decides, cut."""
        own = self.rule(tree, logits, batch)
        assert own.picks is not None and tree.chain
        accepted = own.num_committed - 1
        least = torch.where(batch.active, accepted, tree.max_depth).min()
        kept = torch.minimum(accepted, least)  # rows that have ended keep nothing anyway
        depth = torch.arange(1, tree.max_depth + 1, device=kept.device)
        return Outcome(
            path=torch.where(depth <= kept[:, None], own.path, -1),
            num_committed=kept + 1,
            next=own.picks.gather(1, kept[:, None])[:, 0],  # in a chain a node's number is its depth
            picks=own.picks,
        )
