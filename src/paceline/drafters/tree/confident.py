"""Grows the dynamic draft tree of EAGLE-2 (2406.16858) from the draft's confidence in each path.

B rows, F parents, w width, D depth, C candidates, m proposed, N = m + 1 nodes, V vocabulary.
"""

from typing import final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.tree import NoDraft, Tree
from paceline.drafters.tree.base import ConfidenceScorer, GrownTree, NodeScorer, TreeGrower
from paceline.drafters.tree.shapes import Confident


@final
class ConfidentGrower(TreeGrower):
    """Expands the likeliest nodes of each depth, then proposes the likeliest of all candidates, per row and step.

    The confidence of a node is the product of draft probabilities along its path, before temperature and filters, so no
    node has a higher confidence than its parent. It is kept as a logarithm.
    """

    def __init__(self, shape: Confident) -> None:
        self.shape = shape
        self.num_expanded = shape.num_expanded

    def grow(
        self,
        batch: Batch,
        logits: Tensor,
        max_depth: Tensor,
        score_nodes: NodeScorer,
        no_draft_reason: NoDraft,
        confidence: ConfidenceScorer | None = None,
    ) -> GrownTree:
        width = self.shape.width
        root = torch.full((batch.rows, 1), -1, device=batch.device)
        # Of all candidates; the first entry of each list stands for the root.
        tokens, values, parents, in_forest = (
            [batch.root[:, None]],
            [torch.zeros_like(logits[..., 0])],
            [root],
            [root],
        )
        forest = [root[:, :0]] * 3  # tokens, parents in the forest, and whether they can be proposed
        frontier, forest_index = root + 1, root  # the parents of a depth: among the candidates, and in the forest
        path = root[..., None][..., :0]  # [B, F, depth - 1] the tokens from the root to each parent
        for depth in range(1, self.shape.depth + 1):
            if depth > 1:
                scored = Tree.make(forest[0], forest[1], forest[2].bool(), max_depth=depth - 2)
                logits = score_nodes(scored, (depth - 2) * width)
            found, log_probs = self._children(batch.process(logits, path))  # [B, F, w]
            value = (values[-1].gather(1, frontier - self._start(depth - 1))[..., None] + log_probs).flatten(1)
            value = torch.where((depth <= max_depth)[:, None] & batch.active[:, None], value, -torch.inf)
            # Ids beyond the draft's vocabulary may occur where nothing is left to propose.
            tokens.append(torch.where(value > -torch.inf, found.flatten(1), 0))
            values.append(value)
            parents.append(frontier.repeat_interleave(width, dim=1))
            in_forest.append(torch.full_like(parents[-1], -1))
            if depth < self.shape.depth:
                best = value.topk(width, dim=-1).indices  # [B, w]
                above = forest_index.gather(1, best // width)
                forest_index = (torch.arange(width, device=batch.device) + (depth - 1) * width).expand_as(best)
                in_forest[-1] = in_forest[-1].scatter(1, best, forest_index)
                frontier = best + self._start(depth)
                path = path.gather(1, (best // width)[..., None].expand(-1, -1, depth - 1))
                path = torch.cat((path, tokens[-1].gather(1, best)[..., None]), dim=-1)
                more = (tokens[-1].gather(1, best), above, (value.gather(1, best) > -torch.inf).long())
                forest = [torch.cat(pair, dim=1) for pair in zip(forest, more, strict=True)]
        candidates = (torch.cat(pieces, dim=1) for pieces in (tokens, values, parents, in_forest))
        return self._rerank(batch, *candidates, no_draft_reason=no_draft_reason)

    def _start(self, depth: int) -> int:
        """Index of the first candidate at ``depth``."""
        width = self.shape.width
        return 0 if depth == 0 else 1 if depth == 1 else 1 + width + (depth - 2) * width**2

    def _children(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The likeliest tokens after each of F nodes [B, F, w], and the logarithms of their probabilities."""
        log_probs, tokens = logits.log_softmax(-1).topk(self.shape.width, dim=-1)
        return tokens, log_probs.clamp(max=0)

    def _rerank(
        self,
        batch: Batch,
        tokens: Tensor,
        confidence: Tensor,
        parents: Tensor,
        in_forest: Tensor,
        *,
        no_draft_reason: NoDraft,
    ) -> GrownTree:
        """The root and the m candidates of the highest confidence; all are [B, 1 + C], in the order of scoring."""
        # A stable sort: of equal nodes the shallower comes first, so no node comes without its parent.
        best = confidence[:, 1:].sort(dim=-1, descending=True, stable=True).indices[:, : self.shape.num_drafted] + 1
        best = torch.nn.functional.pad(best.sort(dim=-1).values, (1, 0))  # [B, N], the root first
        order = torch.arange(best.shape[1], device=best.device).expand_as(best)
        renumbered = torch.full_like(tokens, -1).scatter(1, best, order)
        above = parents.gather(1, best)
        valid = (confidence.gather(1, best) > -torch.inf) & batch.active[:, None]
        tree = Tree.make(
            tokens.gather(1, best),
            torch.where(above < 0, -1, renumbered.gather(1, above.clamp(min=0))),
            valid,
            max_depth=self.shape.depth,
            no_draft_reason=no_draft_reason,
        )
        return GrownTree(tree=tree, forest_index=in_forest.gather(1, best))
