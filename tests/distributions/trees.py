"""Trees of any shape and draw over a table: a drafter that knows the distribution after every context.

R rows, V = 3.
"""

import torch

from paceline.core.noise import Stream
from paceline.core.tree import Draw, Tree
from paceline.drafters.base import StatelessDrafter

# Parents of the nodes after the root, in order; siblings stand in draw order.
SHAPES = {
    "two": (0, 0),
    "three": (0, 0, 0),
    "fork late": (0, 1, 1),
    "first deep": (0, 0, 1),
    "last deep": (0, 0, 2),
    "two paths": (0, 0, 1, 2),
    "two by two": (0, 0, 1, 1, 2, 2),
}
PATHS = ("two", "three", "two paths")  # chains from the root that share nothing


class TableTrees(StatelessDrafter):
    """Draws from ``table`` [V, V, V] as it is, whatever the row's own options: the recorded distribution is what
    counts.
    """

    branches = True

    def __init__(self, table, parents, draw):
        self.table, self.parents, self.draw = table, parents, draw
        self.draws = frozenset({draw})
        self.depths = [0]
        for parent in parents:
            self.depths.append(self.depths[parent] + 1)

    @property
    def depth(self):
        return max(self.depths)

    def max_nodes(self, num_draft_tokens):
        return len(self.depths)

    def propose(self, batch, plan):
        known = batch.tokens.gather(1, (batch.length - 2)[:, None])[:, 0]
        tokens, before = {0: batch.root}, {0: known}
        valid, probs, source = {0: batch.active}, [], [-1] * len(self.depths)
        for parent in range(len(self.depths)):
            children = [node + 1 for node, own in enumerate(self.parents) if own == parent]
            if not children:
                continue
            scores = self.table[before[parent], tokens[parent]]  # [R, V]
            distribution = scores.softmax(-1)
            position = (batch.length + self.depths[parent])[:, None]
            drawn = self._draw(batch, scores, position, parent, children)
            for node, token in zip(children, drawn, strict=True):
                tokens[node], before[node] = token, tokens[parent]
                room = self.depths[node] <= batch.draft_room
                # nothing is left to draw once the distribution is used up
                given = distribution.gather(1, token[:, None])[:, 0] > 0
                valid[node] = valid[parent] & room & given
                source[node] = -1 if self.draw is Draw.FIXED else len(probs)
            probs.append(distribution)
        order = range(len(self.depths))
        parents = torch.tensor([-1, *self.parents]).expand(batch.rows, -1)
        return Tree.make(
            torch.stack([tokens[node] for node in order], dim=1),
            parents,
            torch.stack([valid[node] for node in order], dim=1),
            max_depth=self.depth,
            draw=self.draw,
            source=torch.tensor(source).expand(batch.rows, -1),
            probs=None if self.draw is Draw.FIXED else torch.stack(probs, dim=1),
        )

    def _draw(self, batch, scores, position, parent, children):
        if self.draw is Draw.FIXED:
            return scores.sort(dim=-1, descending=True, stable=True).indices[:, : len(children)].unbind(1)
        if self.draw is Draw.NO_REPLACEMENT:
            key = batch.key(position, Stream.DRAFT, node=parent)
            return batch.noise.order(scores[:, None], key, len(children))[:, 0].unbind(1)
        nodes = torch.tensor(children).expand(batch.rows, -1)
        wide = scores[:, None].expand(-1, len(children), -1)
        return batch.noise.choose(wide, batch.key(position.expand_as(nodes), Stream.DRAFT, node=nodes)).unbind(1)
