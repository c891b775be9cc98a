"""Traversal verification of a tree (2505.12398), from the leaves to the root.

B rows, N nodes, V vocabulary.
"""

from typing import ClassVar, final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.noise import Stream
from paceline.core.scores import Scores
from paceline.core.tree import Draw, Outcome, Tree
from paceline.verifiers.draft_probs import draft_probs_of, earlier_siblings, masked, outcome_at


@final
class Traversal:
    """Preserves the target's distribution over trees; on chains this is ``block``.

    Acceptance rule: a node is tested after all its descendants and before its later siblings, and the first accepted
    node is kept with its path. A node is accepted with its weight, min(1, p(x) / q(x)) where p is the residual at its
    parent. Each rejected child subtracts q from the residual of its parent and lowers the parent's weight accordingly.
    The next token is drawn from the residual at the accepted node.
    """

    lossless: ClassVar[bool] = True
    same_tokens: ClassVar[bool] = False
    wants: ClassVar[tuple[Draw, ...]] = (Draw.NO_REPLACEMENT, Draw.IID, Draw.FIXED)
    branches: ClassVar[bool] = True

    def __call__(self, tree: Tree, scores: Scores, batch: Batch) -> Outcome:
        """The first accepted node in the order of the tests, the root last, and one token after it."""
        if not batch.sampling.any_sampled:  # every row is greedy
            return batch.match(tree, batch.picks(tree, scores.logits))
        tree = masked(tree, scores)
        position = batch.length[:, None] + tree.depth  # of the token after each node
        residual = batch.warp(scores.logits).softmax(-1)  # [B, N, V] given the children rejected so far
        rows, first = torch.arange(batch.rows, device=residual.device), residual[:, 0].clone()
        weight = torch.ones_like(residual[..., 0])  # [B, N]
        # Residuals after a rejection do not depend on the noise, so one pass from the root computes all weights.
        for node in range(1, tree.num_nodes):
            parent = tree.parents[:, node].clamp(min=0)
            token = tree.tokens[:, node, None]
            whole, p, q = weight[rows, parent], residual[rows, parent], draft_probs_of(tree, node, residual)
            drawn = q.gather(1, token)[:, 0]
            # A node of draft probability 0, as when no token was left to draw, is skipped.
            real = tree.valid[:, node] & (drawn > 0)
            own = (p.gather(1, token)[:, 0] / torch.where(real, drawn, 1.0)).clamp(max=1)
            own = torch.where(real, own, 0.0)
            weight[:, node] = own
            residual[:, node] *= own[:, None]
            rest = (p - q).clamp_(min=0)
            mass = rest.sum(-1)
            rejection = mass + 1 - whole  # the probability of rejecting this child
            rejection = torch.where(rejection > 0, rejection, 1.0)
            residual[rows, parent] = torch.where(real[:, None], rest / rejection[:, None], p)
            weight[rows, parent] = torch.where(real, mass / rejection, whole)
        accepted = batch.noise.coin(
            weight[:, 1:],
            torch.ones_like(weight)[:, 1:],
            batch.key(position[:, 1:] - 1, Stream.ACCEPT, node=torch.arange(1, tree.num_nodes, device=residual.device)),
        )
        accepted = torch.nn.functional.pad(accepted & tree.valid[:, 1:], (1, 0))
        leaf = torch.where(accepted, self._test_order(tree), 2 * tree.num_nodes).argmin(-1)  # else the root, node 0
        at = leaf[:, None]
        key = batch.key(position.gather(1, at), Stream.RESIDUAL, node=at)
        probs = residual[rows, leaf]
        # Only rounding leaves an empty residual at the accepted node, and only at the root.
        probs = torch.where(probs.sum(-1, keepdim=True) > 0, probs, first)
        token = batch.noise.draw(probs[:, None], key)[:, 0]
        return outcome_at(tree, leaf, token)

    @staticmethod
    def _test_order(tree: Tree) -> Tensor:
        """Each valid node's place in the tests [B, N]: after its descendants, its earlier siblings and theirs."""
        descends = tree.ancestors & tree.valid[..., None]  # [b, n, m]: n is m or below it
        size = descends.sum(1)  # [B, N] of the subtree of each node, itself included
        before = (earlier_siblings(tree) * size[:, None, :]).sum(-1)
        return (tree.ancestors * before[:, None, :]).sum(-1) + size - 1
