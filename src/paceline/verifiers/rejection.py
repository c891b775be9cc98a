"""Speculative sampling down a chain (2211.17192, 2302.01318), with the law that each token was really drawn from.

B rows, N = k + 1 nodes, V vocabulary.
"""

from typing import ClassVar, final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.noise import Stream
from paceline.core.tree import Draw, Outcome, Tree, follow


@final
class Rejection:
    """Speculative sampling: the target's law, though not the tokens of plain decoding.

    Accept x with probability min(1, p(x) / q(x)); at the first refusal draw from relu(p - q), else a bonus from p. A
    fixed choice has a one-hot q: accepted with probability p(x), replaced from p without x. Accept and residual noise
    are keyed by the row's step and the node, so they are independent of the draft's and never used again.
    """

    lossless: ClassVar[bool] = True
    same_tokens: ClassVar[bool] = False
    wants: ClassVar[tuple[Draw, ...]] = (Draw.IID, Draw.FIXED)
    branches: ClassVar[bool] = False

    def __call__(self, tree: Tree, logits: Tensor, batch: Batch) -> Outcome:
        """The longest accepted prefix of the chain and one token of the target's law after it."""
        position = batch.length[:, None] + tree.depth  # of the token after each node
        p = batch.scores(logits, position).softmax(-1)  # [B, N, V]: the law after each node
        q = self._laws(tree, p)  # [B, N - 1, V]: the law that each drafted node was drawn from
        token = tree.tokens[:, 1:, None]
        lane = tree.depth[:, 1:]
        keep = batch.noise.coin(
            p[:, :-1].gather(-1, token)[..., 0],
            q.gather(-1, token)[..., 0],
            batch.key(position[:, :-1], Stream.ACCEPT, lane=lane),
        )
        leaf, path, length = follow(tree, torch.nn.functional.pad(keep, (1, 0)))
        at = leaf[:, None]
        row = at[..., None].expand(-1, 1, p.shape[-1])
        law = p.gather(1, row)
        # After a whole draft there is no q to take away: the bonus comes from p itself.
        refused = torch.nn.functional.pad(q * tree.valid[:, 1:, None], (0, 0, 0, 1)).gather(1, row)
        residual = (law - refused).clamp(min=0)
        law = torch.where(residual.sum(-1, keepdim=True) > 0, residual, law)
        key = batch.key(position.gather(1, at), Stream.RESIDUAL, lane=at)
        return Outcome(path=path, num_committed=length + 1, next=batch.noise.choose(law.log(), key)[:, 0])

    @staticmethod
    def _laws(tree: Tree, p: Tensor) -> Tensor:
        """q of every drafted node [B, N - 1, V]: its recorded law, or one-hot for a fixed choice."""
        index, token = tree.law[:, 1:, None], tree.tokens[:, 1:, None]
        fixed = torch.zeros_like(p[:, 1:]).scatter_(-1, token, 1.0)
        if tree.laws is None or tree.num_nodes == 1:
            return fixed
        recorded = tree.laws.gather(1, index.clamp(min=0).expand_as(fixed))
        return torch.where(index >= 0, recorded, fixed)
