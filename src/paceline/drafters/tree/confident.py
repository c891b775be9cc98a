"""Grows the tree that the draft is surest of (EAGLE-2, 2406.16858). Knows no model and no cache.

B rows, w width, D depth, C nodes scored, m proposed, N = m + 1 nodes, V vocabulary.
"""

from typing import final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.tree import NoDraft, Tree
from paceline.drafters.tree.base import Grower, Grown, Read
from paceline.drafters.tree.shapes import Confident


@final
class ConfidentGrower(Grower):
    """Expands the likeliest nodes of each depth, then proposes the likeliest of all, for every row and step anew.

    What a node is worth is the product of the draft's probabilities along its path, before temperature and filters, so
    no node is worth more than its parent.
    """

    def __init__(self, shape: Confident) -> None:
        self.shape = shape
        self.num_read = shape.num_read

    def grow(self, batch: Batch, logits: Tensor, room: Tensor, read: Read, no_draft_reason: NoDraft) -> Grown:
        width = self.shape.width
        root = torch.full((batch.rows, 1), -1, device=batch.device)
        # Of the nodes scored, and of those expanded: the first of each piece is the root's stand-in.
        tokens, worth, parents, slots = [batch.root[:, None]], [torch.zeros_like(logits[..., 0])], [root], [root]
        forest = [root[:, :0]] * 3  # tokens, parents in the forest, and whether they can be proposed
        frontier, place = root + 1, root  # the parents of a depth: among the nodes scored, and in the forest
        path = root[..., None][..., :0]  # [B, F, depth - 1] the tokens from the root to each parent
        for depth in range(1, self.shape.depth + 1):
            if depth > 1:
                known = Tree.make(forest[0], forest[1], forest[2].bool(), max_depth=depth - 2)
                logits = read(known, (depth - 2) * width)
            found, share = self._children(batch.process(logits, path))  # [B, F, w]
            value = (worth[-1].gather(1, frontier - self._start(depth - 1))[..., None] + share).flatten(1)
            value = torch.where((depth <= room)[:, None] & batch.active[:, None], value, -torch.inf)
            # Ids beyond the draft's vocabulary may stand where nothing is left to propose.
            tokens.append(torch.where(value > -torch.inf, found.flatten(1), 0))
            worth.append(value)
            parents.append(frontier.repeat_interleave(width, dim=1))
            slots.append(torch.full_like(parents[-1], -1))
            if depth < self.shape.depth:
                keep = value.topk(width, dim=-1).indices  # [B, w]
                above = place.gather(1, keep // width)
                place = (torch.arange(width, device=batch.device) + (depth - 1) * width).expand_as(keep)
                slots[-1] = slots[-1].scatter(1, keep, place)
                frontier = keep + self._start(depth)
                path = path.gather(1, (keep // width)[..., None].expand(-1, -1, depth - 1))
                path = torch.cat((path, tokens[-1].gather(1, keep)[..., None]), dim=-1)
                more = (tokens[-1].gather(1, keep), above, (value.gather(1, keep) > -torch.inf).long())
                forest = [torch.cat(pair, dim=1) for pair in zip(forest, more, strict=True)]
        scored = (torch.cat(pieces, dim=1) for pieces in (tokens, worth, parents, slots))
        return self._rerank(batch, *scored, no_draft_reason=no_draft_reason)

    def _start(self, depth: int) -> int:
        """Index of the first of the nodes scored at ``depth``."""
        width = self.shape.width
        return 0 if depth == 0 else 1 if depth == 1 else 1 + width + (depth - 2) * width**2

    def _children(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The likeliest tokens after each of F nodes [B, F, w], and the logarithms of their probabilities."""
        share, tokens = logits.log_softmax(-1).topk(self.shape.width, dim=-1)
        return tokens, share.clamp(max=0)

    def _rerank(
        self, batch: Batch, tokens: Tensor, worth: Tensor, parents: Tensor, slots: Tensor, *, no_draft_reason: NoDraft
    ) -> Grown:
        """The root and the m nodes worth most, all [B, 1 + C], in the order in which they were scored."""
        # A stable sort: of equal nodes the shallower comes first, so no node comes without its parent.
        best = worth[:, 1:].sort(dim=-1, descending=True, stable=True).indices[:, : self.shape.num_drafted] + 1
        best = torch.nn.functional.pad(best.sort(dim=-1).values, (1, 0))  # [B, N], the root first
        order = torch.arange(best.shape[1], device=best.device).expand_as(best)
        renumbered = torch.full_like(tokens, -1).scatter(1, best, order)
        above = parents.gather(1, best)
        valid = (worth.gather(1, best) > -torch.inf) & batch.active[:, None]
        tree = Tree.make(
            tokens.gather(1, best),
            torch.where(above < 0, -1, renumbered.gather(1, above.clamp(min=0))),
            valid,
            max_depth=self.shape.depth,
            no_draft_reason=no_draft_reason,
        )
        return Grown(tree=tree, slots=slots.gather(1, best))
