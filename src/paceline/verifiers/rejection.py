"""Speculative sampling of a chain by rejection (2211.17192, 2302.01318).

B rows, N = k + 1 nodes, V vocabulary.
"""

from typing import ClassVar, final

import torch

from paceline.core.batch import Batch
from paceline.core.noise import Stream
from paceline.core.scores import Scores
from paceline.core.tree import Draw, Outcome, Tree, follow
from paceline.verifiers.draft_probs import child_draft_probs, follow_picks, masked


@final
class Rejection:
    """Preserves the target's distribution, not the tokens of plain decoding.

    Acceptance rule: x is accepted with probability min(1, p(x) / q(x)). At the first rejection the next token is drawn
    from relu(p - q), normalised; after a whole draft a bonus token is drawn from p. A fixed choice has a one-hot q: it
    is accepted with probability p(x), and replaced by a draw from p without x. The noise is keyed by the row's step and
    the node, so it is independent of the draft's and never used again.
    """

    lossless: ClassVar[bool] = True
    same_tokens: ClassVar[bool] = False
    wants: ClassVar[tuple[Draw, ...]] = (Draw.IID, Draw.FIXED)
    branches: ClassVar[bool] = False

    def __call__(self, tree: Tree, scores: Scores, batch: Batch) -> Outcome:
        """The longest accepted prefix of the chain and one token after it."""
        if not batch.sampling.any_sampled:  # every row is greedy
            return follow_picks(tree, batch.picks(tree, scores.logits))
        tree = masked(tree, scores)
        position = batch.length[:, None] + tree.depth  # of the token after each node
        p = batch.warp(scores.logits).softmax(-1)  # [B, N, V]: the distribution after each node
        q = child_draft_probs(tree, p)  # [B, N, V]: the distribution that each node's child was drawn from, or 0
        token = tree.tokens[:, 1:, None]
        node = tree.depth[:, 1:]
        accepted = batch.noise.coin(
            p[:, :-1].gather(-1, token)[..., 0],
            q[:, :-1].gather(-1, token)[..., 0],
            batch.key(position[:, :-1], Stream.ACCEPT, node=node),
        )
        leaf, path, length = follow(tree, torch.nn.functional.pad(accepted, (1, 0)))
        at = leaf[:, None]
        row = at[..., None].expand(-1, 1, p.shape[-1])
        probs = p.gather(1, row)
        rejected = q.gather(1, row)  # 0 after a whole draft: the bonus token comes from p
        residual = (probs - rejected).clamp(min=0)
        probs = torch.where(residual.sum(-1, keepdim=True) > 0, residual, probs)
        key = batch.key(position.gather(1, at), Stream.RESIDUAL, node=at)
        return Outcome(path=path, num_committed=length + 1, next=batch.noise.draw(probs, key)[:, 0])
