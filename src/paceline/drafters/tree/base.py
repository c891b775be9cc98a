"""Interfaces between a drafter, which computes logits, and a tree grower, which chooses nodes.

Logits are needed at the *expanded* nodes: those with children, less the root. The drafter sees them as a forest,
numbered in the order in which they are scored. B rows, N nodes, n nodes of a call, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, final

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


ConfidenceScorer: TypeAlias = Callable[[], Tensor]
"""The log odds [B] of acceptance of the token after the node that was scored last, which is not known yet."""


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
        self,
        batch: Batch,
        logits: Tensor,
        max_depth: Tensor,
        score_nodes: NodeScorer,
        no_draft_reason: NoDraft,
        confidence: ConfidenceScorer | None = None,
    ) -> GrownTree:
        """A tree for every row, from the ``logits`` [B, 1, V] after its root.

        No node of row b is valid below depth ``max_depth[b]`` [B], nor in rows that are not active. ``no_draft_reason``
        says why a row of ``max_depth`` 0 has no draft. Chains that end early do so by ``confidence`` (None: by logits).
        """


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyTensors:
    """A static topology of N nodes as tensors, made once; parents come before their children, level by level."""

    parents: Tensor  # [N]
    depth: Tensor  # [N]
    ancestors: Tensor  # [N, N] bool
    draw: Tensor  # [N]
    source: Tensor  # [N]
    origin: Tensor  # [N]
    max_depth: int
    num_leading: int  # nodes before the first that is not the child of the one before

    @staticmethod
    def make(
        parents: Sequence[int],
        device: torch.device,
        *,
        draw: Draw = Draw.FIXED,
        source: Sequence[int] | None = None,
    ) -> "TopologyTensors":
        """The tensors of the topology ``parents``; ``source`` None is -1 everywhere."""
        nodes, depth = len(parents), depths_of(parents)
        num_leading = next((node for node, parent in enumerate(parents) if parent != node - 1), nodes)
        index, known = torch.arange(nodes, device=device), torch.tensor(parents, dtype=torch.int64, device=device)
        if num_leading == nodes:
            ancestors = index[None, :] <= index[:, None]
        else:
            lines: list[list[bool]] = []
            for node, parent in enumerate(parents):
                lines.append(list(lines[parent]) if parent >= 0 else [False] * nodes)
                lines[node][node] = True
            ancestors = torch.tensor(lines, dtype=torch.bool, device=device)
        return TopologyTensors(
            parents=known,
            depth=torch.tensor(depth, dtype=torch.int64, device=device),
            ancestors=ancestors,
            draw=torch.full_like(known, int(draw)),
            source=torch.full_like(known, -1)
            if source is None
            else torch.tensor(source, dtype=torch.int64, device=device),
            origin=torch.zeros_like(known),
            max_depth=max(depth, default=-1),
            num_leading=num_leading,
        )

    @property
    def chain(self) -> bool:
        """Whether each node is the child of the one before."""
        return self.num_leading >= len(self.parents)

    def first(self, num_nodes: int, *, max_depth: int) -> "TopologyTensors":
        """The first ``num_nodes``, which are ``max_depth`` deep, as views."""
        return TopologyTensors(
            parents=self.parents[:num_nodes],
            depth=self.depth[:num_nodes],
            ancestors=self.ancestors[:num_nodes, :num_nodes],
            draw=self.draw[:num_nodes],
            source=self.source[:num_nodes],
            origin=self.origin[:num_nodes],
            max_depth=max_depth,
            num_leading=self.num_leading,
        )

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


def depths_of(parents: Sequence[int]) -> list[int]:
    """The depth of each node, 0 where its parent is -1."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 + depths[parent] if parent >= 0 else 0)
    return depths
