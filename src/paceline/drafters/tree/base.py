"""Interfaces between a drafter, which computes logits, and a tree grower, which chooses nodes.

Logits are needed at the *expanded* nodes: those with children, less the root. The drafter sees them as a forest,
numbered in the order in which they are scored. B rows, N nodes, n nodes of a call, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.tree import Draw, NoDraft, Tree


class NodeScorer(Protocol):
    """Computes logits after nodes ``start`` on of a forest; it has scored the earlier nodes before."""

    def __call__(self, forest: Tree, start: int) -> Tensor:
        """Logits [B, n, V] after each of these nodes, V being the target's vocabulary.

        Nodes whose parent is -1 are children of the root, so depth 0 of ``forest`` is depth 1 of the draft.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GrownTree:
    """A draft tree, and the place of its nodes in the forest."""

    tree: Tree
    forest_index: Tensor  # [B, N] int64, -1 where a node was not scored


class TreeGrower(ABC):
    """Grows trees of one shape."""

    num_expanded: int  # nodes that are scored per row

    @abstractmethod
    def grow(
        self, batch: Batch, logits: Tensor, max_depth: Tensor, score_nodes: NodeScorer, no_draft_reason: NoDraft
    ) -> GrownTree:
        """A tree for every row, from the ``logits`` [B, 1, V] after its root.

        No node of row b is valid below depth ``max_depth[b]`` [B], nor in rows that are not active. ``no_draft_reason``
        says why a row of ``max_depth`` 0 has no draft.
        """


@final
class TopologyTensors:
    """A static topology as tensors, made once; parents come before their children."""

    def __init__(
        self,
        parents: Sequence[int],
        device: torch.device,
        *,
        draw: Draw = Draw.FIXED,
        source: Sequence[int] | None = None,
    ) -> None:
        def constant(values: Sequence[int]) -> Tensor:
            return torch.tensor(list(values), dtype=torch.int64, device=device)

        paths: list[tuple[int, ...]] = []
        for node, parent in enumerate(parents):
            paths.append((*paths[parent], node) if parent >= 0 else (node,))
        self.parents = constant(parents)
        self.depth = constant([len(path) - 1 for path in paths])
        ancestors = [[node in path for node in range(len(paths))] for path in paths]
        self.ancestors = torch.tensor(ancestors, dtype=torch.bool, device=device)
        self.draw = torch.full_like(self.parents, int(draw))
        self.source = torch.full_like(self.parents, -1) if source is None else constant(source)
        self.origin = torch.zeros_like(self.parents)
        self.max_depth = max(len(path) for path in paths) - 1
        self.chain = all(parent == node - 1 for node, parent in enumerate(parents))

    def tree(
        self,
        tokens: Tensor,
        valid: Tensor,
        *,
        probs: Tensor | None = None,
        fixed_rows: Tensor | None = None,
        no_draft_reason: NoDraft = NoDraft.DECLINED,
    ) -> Tree:
        """The tree of ``tokens`` and ``valid`` [B, N]; in ``fixed_rows`` [B] every token is a fixed choice."""
        rows, nodes = tokens.shape
        draw, source = self.draw.expand(rows, nodes), self.source.expand(rows, nodes)
        if fixed_rows is not None:
            draw = torch.where(fixed_rows[:, None], int(Draw.FIXED), draw)
            source = torch.where(fixed_rows[:, None], -1, source)
        return Tree(
            tokens=tokens,
            parents=self.parents.expand(rows, nodes),
            depth=self.depth.expand(rows, nodes),
            ancestors=self.ancestors.expand(rows, nodes, nodes),
            valid=valid,
            draw=draw,
            source=source,
            probs=probs,
            origin=self.origin.expand(rows, nodes),
            max_depth=self.max_depth,
            chain=self.chain,
            no_draft_reason=no_draft_reason,
        )
