"""What grows a tree is to a drafter, and the reverse. Knows no model and no cache.

The nodes that must be scored are those with children, less the root: the *read* nodes. Who scores them sees a forest of
them alone, numbered in the order in which they are read. B rows, N nodes, n nodes of a call, F parents, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.tree import Draw, NoDraft, Tree


class Read(Protocol):
    """Scores nodes ``start`` on of a forest, whose former nodes it has read before."""

    def __call__(self, forest: Tree, start: int) -> Tensor:
        """Logits [B, n, V] after each of these nodes, V being the target's vocabulary.

        Nodes whose parent is -1 are children of the root; those of a depth of ``forest`` are one deeper in the draft.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """A tree, and where in the forest its nodes were read."""

    tree: Tree
    slots: Tensor  # [B, N] int64, -1 where a node was not read


class Grower(ABC):
    """Grows trees of one shape."""

    num_read: int  # nodes that are read per row

    @abstractmethod
    def grow(self, batch: Batch, logits: Tensor, room: Tensor, read: Read, no_draft_reason: NoDraft) -> Grown:
        """A tree for every row, from the ``logits`` [B, 1, V] after its root.

        No node of row b is valid below depth ``room[b]`` [B], nor in rows that are not active. ``no_draft_reason`` says
        why a row with ``room`` 0 proposes nothing."""


@final
class Frame:
    """A static topology as tensors, made once; parents stand before their children."""

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
        reach = [[node in path for node in range(len(paths))] for path in paths]
        self.ancestors = torch.tensor(reach, dtype=torch.bool, device=device)
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
        chosen: Tensor | None = None,
        no_draft_reason: NoDraft = NoDraft.DECLINED,
    ) -> Tree:
        """With ``tokens`` and ``valid`` [B, N]; in rows that are ``chosen`` [B] all are fixed choices."""
        rows, nodes = tokens.shape
        draw, source = self.draw.expand(rows, nodes), self.source.expand(rows, nodes)
        if chosen is not None:
            draw = torch.where(chosen[:, None], int(Draw.FIXED), draw)
            source = torch.where(chosen[:, None], -1, source)
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
