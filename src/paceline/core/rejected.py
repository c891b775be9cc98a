"""What a step's draft proposed in vain, for rows that ask to see it.

R rows, N nodes, D draft depth.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.core.host import table
from paceline.core.tree import Outcome, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDrafts:
    """The draft of one step and the path that was accepted of it, on the device."""

    asked: tuple[int, ...]  # rows
    num_nodes: int
    columns: Tensor  # [R, 3 N + D] tokens, parents and validity of the nodes, then the path

    @staticmethod
    def of(tree: Tree, outcome: Outcome, asked: Sequence[int]) -> "StepDrafts":
        """A copy, because the tensors of ``tree`` may be those of the next step too."""
        columns = torch.cat((tree.tokens, tree.parents, tree.valid.long(), outcome.path), dim=1)
        return StepDrafts(asked=tuple(asked), num_nodes=tree.num_nodes, columns=columns)

    def read(self) -> dict[int, list[int]]:
        """The tokens that were rejected after the accepted path, by row; a transfer to the host.

        Of several branches of a tree that is the first one, which its drafter preferred.
        """
        rows, size = table(self.columns), self.num_nodes
        found: dict[int, list[int]] = {}
        for row in self.asked:
            tokens, parents, valid = (rows[row][at : at + size] for at in range(0, 3 * size, size))
            node = max(rows[row][3 * size :], default=0)  # children come after their parents, and -1 after the path
            node, rejected = max(node, 0), list[int]()
            for child in range(node + 1, size):
                if valid[child] and parents[child] == node:
                    node = child
                    rejected.append(tokens[child])
            found[row] = rejected
        return found
