"""A verifier that lets no row get ahead of another: all accept as many drafts as the row that accepts fewest.

B rows, N nodes, D path depth, V vocabulary.
"""

from typing import ClassVar, final

import torch

from paceline.core.batch import Batch
from paceline.core.scores import Scores
from paceline.core.tree import Draw, Outcome, Tree
from paceline.verifiers.coupled import Coupled


@final
class LockStep:
    """``coupled``, cut to the least that any active row accepts; chains only.

    A row that is cut goes on with the target's own token at that place, which is the one that it had accepted there. So
    outputs are those of plain decoding, and rows that began together stay together.
    """

    lossless: ClassVar[bool] = True
    same_tokens: ClassVar[bool] = True
    wants: ClassVar[tuple[Draw, ...]] = Coupled.wants
    branches: ClassVar[bool] = False

    def __init__(self) -> None:
        self.coupled = Coupled()

    def __call__(self, tree: Tree, scores: Scores, batch: Batch) -> Outcome:
        """What ``coupled`` decides, cut."""
        full = self.coupled(tree, scores, batch)
        assert full.picks is not None and tree.chain
        accepted = full.num_committed - 1
        least = torch.where(batch.active, accepted, tree.max_depth).min()
        accepted = torch.minimum(accepted, least)  # rows that have ended accept nothing anyway
        depth = torch.arange(1, tree.max_depth + 1, device=accepted.device)
        return Outcome(
            path=torch.where(depth <= accepted[:, None], full.path, -1),
            num_committed=accepted + 1,
            next=full.picks.gather(1, accepted[:, None])[:, 0],  # in a chain a node's number is its depth
            picks=full.picks,
        )
