"""Speculative sampling down a chain (2211.17192, 2302.01318), with the distribution that each token was really drawn
from.

B rows, N = k + 1 nodes, V vocabulary.
"""

from typing import ClassVar, final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.noise import Stream
from paceline.core.tree import Draw, Outcome, Tree, follow
from paceline.verifiers.draft_probs import child_draft_probs, follow_picks


@final
class Rejection:
    """Speculative sampling: the target's distribution, though not the tokens of plain decoding.

    Accept x with probability min(1, p(x) / q(x)); at the first refusal draw from relu(p - q), else a bonus from p. A
    fixed choice has a one-hot q: accepted with probability p(x), replaced from p without x. Accept and residual noise
    are keyed by the row's step and the node, so they are independent of the draft's and never used again.
    """

    lossless: ClassVar[bool] = True
    same_tokens: ClassVar[bool] = False
    wants: ClassVar[tuple[Draw, ...]] = (Draw.IID, Draw.FIXED)
    branches: ClassVar[bool] = False

    def __call__(self, tree: Tree, logits: Tensor, batch: Batch) -> Outcome:
        """The longest accepted prefix of the chain and one token of the target's distribution after it."""
        if not batch.sampling.any_sampled:  # the distribution is certain everywhere
            return follow_picks(tree, batch.picks(tree, logits))
        position = batch.length[:, None] + tree.depth  # of the token after each node
        p = batch.scores(logits).softmax(-1)  # [B, N, V]: the distribution after each node
        q = child_draft_probs(
            tree, p
        )  # [B, N, V]: the distribution that each node's child was drawn from, 0 if it has none
        token = tree.tokens[:, 1:, None]
        lane = tree.depth[:, 1:]
        keep = batch.noise.coin(
            p[:, :-1].gather(-1, token)[..., 0],
            q[:, :-1].gather(-1, token)[..., 0],
            batch.key(position[:, :-1], Stream.ACCEPT, lane=lane),
        )
        leaf, path, length = follow(tree, torch.nn.functional.pad(keep, (1, 0)))
        at = leaf[:, None]
        row = at[..., None].expand(-1, 1, p.shape[-1])
        probs = p.gather(1, row)
        refused = q.gather(1, row)  # after a whole draft there is nothing to take away: the bonus comes from p itself
        residual = (probs - refused).clamp(min=0)
        probs = torch.where(residual.sum(-1, keepdim=True) > 0, residual, probs)
        key = batch.key(position.gather(1, at), Stream.RESIDUAL, lane=at)
        return Outcome(path=path, num_committed=length + 1, next=batch.noise.draw(probs, key)[:, 0])
