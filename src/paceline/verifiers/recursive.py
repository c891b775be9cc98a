"""Recursive rejection down a tree (2305.09781, 2402.12374): siblings are tried in the order they were drawn.

B rows, N nodes, V vocabulary.
"""

from typing import ClassVar, final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.noise import Stream
from paceline.core.tree import Draw, Outcome, Tree, follow
from paceline.verifiers.draft_probs import draft_probs_of, earlier_siblings, follow_picks


@final
class Recursive:
    """The target's distribution, over trees whose siblings were drawn with or without replacement or chosen by a rule.

    At a node, its children are tried in turn: x is accepted with probability min(1, p(x) / q(x)), with p the target's
    distribution and q the distribution that x was drawn from; a refusal puts relu(p - q), normalised, in the place of
    p. If none is accepted the next token comes from what is left of p. On chains this is ``rejection``, token for
    token."""

    lossless: ClassVar[bool] = True
    same_tokens: ClassVar[bool] = False
    wants: ClassVar[tuple[Draw, ...]] = (Draw.NO_REPLACEMENT, Draw.IID, Draw.FIXED)
    branches: ClassVar[bool] = True

    def __call__(self, tree: Tree, logits: Tensor, batch: Batch) -> Outcome:
        """Down from the root through the first accepted child of each node."""
        if not batch.sampling.any_sampled:  # the distribution is certain everywhere
            return follow_picks(tree, batch.picks(tree, logits))
        position = batch.length[:, None] + tree.depth  # of the token after each node
        left = batch.scores(logits).softmax(-1)  # [B, N, V]: of the distribution after each node
        rows = torch.arange(batch.rows, device=left.device)
        one = torch.ones_like(left[:, 0, 0])
        chances, odds = [one], [one]  # what the coin of each node compares
        for node in range(1, tree.num_nodes):  # parents stand before children, siblings in draw order
            parent = tree.parents[:, node].clamp(min=0)
            token = tree.tokens[:, node, None]
            p, q = left[rows, parent], draft_probs_of(tree, node, left)
            drawn = q.gather(1, token)
            # Without a probability to be drawn, as when no token was left to draw, a node is as if absent.
            real = tree.valid[:, node, None] & (drawn > 0)
            chances.append(torch.where(real, p.gather(1, token), 0.0)[:, 0])
            odds.append(drawn[:, 0])
            rest = (p - q).clamp_(min=0)
            mass = rest.sum(-1, keepdim=True)
            left[rows, parent] = torch.where(real & (mass > 0), rest / mass, p)
        keep = batch.noise.coin(
            torch.stack(chances, dim=1)[:, 1:],
            torch.stack(odds, dim=1)[:, 1:],
            batch.key(position[:, 1:] - 1, Stream.ACCEPT, lane=torch.arange(1, tree.num_nodes, device=left.device)),
        )
        keep = torch.nn.functional.pad(keep, (1, 0)) & tree.valid
        if not tree.chain:
            keep = keep & ~(earlier_siblings(tree) & keep[:, None, :]).any(-1)
        leaf, path, length = follow(tree, keep)
        at = leaf[:, None]
        key = batch.key(position.gather(1, at), Stream.RESIDUAL, lane=at)
        token = batch.noise.draw(left[rows, leaf][:, None], key)[:, 0]
        return Outcome(path=path, num_committed=length + 1, next=token)
