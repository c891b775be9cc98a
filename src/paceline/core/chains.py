"""Chains as trees (core/tree), without a tensor operation per step.

R rows, N nodes.
"""

from typing import final

import torch
from torch import Tensor

from paceline.core.tree import NoDraft, Tree


@final
class ChainTrees:
    """Makes the trees of chains of fixed choices, for R = ``rows`` and up to ``max_depth`` drafted tokens.

    Besides tokens and validity, chains of one length are equal: those tensors are made here, once, and shared by all
    trees. They must not be changed.
    """

    def __init__(self, rows: int, max_depth: int, device: torch.device) -> None:
        tokens = torch.zeros(rows, 1 + max_depth, dtype=torch.int64, device=device)
        longest = Tree.make_chain(tokens, tokens.bool())
        square = longest.ancestors
        flat = (longest.parents, longest.depth, longest.draw, longest.source, longest.origin)
        self._by_depth = [(square[:, :n, :n], *(field[:, :n] for field in flat)) for n in range(1, max_depth + 2)]

    def tree(self, tokens: Tensor, valid: Tensor, no_draft_reason: NoDraft) -> Tree:
        """The chain of ``tokens`` and ``valid`` [R, N], the root first."""
        max_depth = tokens.shape[1] - 1
        ancestors, parents, depth, draw, source, origin = self._by_depth[max_depth]
        return Tree(
            tokens=tokens,
            parents=parents,
            depth=depth,
            ancestors=ancestors,
            valid=valid,
            draw=draw,
            source=source,
            probs=None,
            origin=origin,
            max_depth=max_depth,
            chain=True,
            no_draft_reason=no_draft_reason,
        )
