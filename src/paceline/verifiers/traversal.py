"""Traversal verification of a tree, from the leaves to the root (2505.12398).

B rows, N nodes, V vocabulary.
"""

from typing import ClassVar, final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.noise import Stream
from paceline.core.tree import Draw, Outcome, Tree
from paceline.verifiers.draft_probs import draft_probs_of, earlier_siblings, follow_picks, outcome_at


@final
class Traversal:
    """The target's distribution, over trees; keeps more than ``recursive`` as ``block`` keeps more than ``rejection``.

    A node is tested after all its descendants and before its later siblings, and the first that passes is kept with
    its path. Every node carries the weight with which it may still be kept, and a measure of that mass over the next
    token, from which each refused child takes what it could have brought. On chains this is ``block``.
    """

    lossless: ClassVar[bool] = True
    same_tokens: ClassVar[bool] = False
    wants: ClassVar[tuple[Draw, ...]] = (Draw.NO_REPLACEMENT, Draw.IID, Draw.FIXED)
    branches: ClassVar[bool] = True

    def __call__(self, tree: Tree, logits: Tensor, batch: Batch) -> Outcome:
        """The first node to pass in the order of the test, the root last, and one token after it."""
        if not batch.sampling.any_sampled:  # the distribution is certain everywhere
            return follow_picks(tree, batch.picks(tree, logits))
        position = batch.length[:, None] + tree.depth  # of the token after each node
        left = batch.scores(logits).softmax(-1)  # [B, N, V]: the measure of each node, below
        rows, first = torch.arange(batch.rows, device=left.device), left[:, 0].clone()
        weight = torch.ones_like(left[..., 0])  # [B, N]
        # What a refusal leaves of its parent does not depend on coins, so one pass from the root finds all weights.
        for node in range(1, tree.num_nodes):
            parent = tree.parents[:, node].clamp(min=0)
            token = tree.tokens[:, node, None]
            whole, p, q = weight[rows, parent], left[rows, parent], draft_probs_of(tree, node, left)
            drawn = q.gather(1, token)[:, 0]
            # Without a probability to be drawn, as when no token was left to draw, a node is as if absent.
            real = tree.valid[:, node] & (drawn > 0)
            own = (p.gather(1, token)[:, 0] / torch.where(real, drawn, 1.0)).clamp(max=1)
            own = torch.where(real, own, 0.0)
            weight[:, node] = own
            left[:, node] *= own[:, None]
            rest = (p - q).clamp_(min=0)
            mass = rest.sum(-1)
            refused = mass + 1 - whole  # the probability of refusing this child
            refused = torch.where(refused > 0, refused, 1.0)
            left[rows, parent] = torch.where(real[:, None], rest / refused[:, None], p)
            weight[rows, parent] = torch.where(real, mass / refused, whole)
        passes = batch.noise.coin(
            weight[:, 1:],
            torch.ones_like(weight)[:, 1:],
            batch.key(position[:, 1:] - 1, Stream.ACCEPT, lane=torch.arange(1, tree.num_nodes, device=left.device)),
        )
        passes = torch.nn.functional.pad(passes & tree.valid[:, 1:], (1, 0))
        leaf = torch.where(passes, self._turn(tree), 2 * tree.num_nodes).argmin(-1)  # the root, node 0, if none passes
        at = leaf[:, None]
        key = batch.key(position.gather(1, at), Stream.RESIDUAL, lane=at)
        probs = left[rows, leaf]
        # Only rounding leaves nothing at the node that is kept, and only at the root.
        probs = torch.where(probs.sum(-1, keepdim=True) > 0, probs, first)
        token = batch.noise.draw(probs[:, None], key)[:, 0]
        return outcome_at(tree, leaf, token)

    @staticmethod
    def _turn(tree: Tree) -> Tensor:
        """When each valid node is tested [B, N]: after its descendants, and after its earlier siblings and theirs."""
        descends = tree.ancestors & tree.valid[..., None]  # [b, n, m]: n is m or below it
        size = descends.sum(1)  # [B, N] of the subtree under each node, itself included
        before = (earlier_siblings(tree) * size[:, None, :]).sum(-1)
        return (tree.ancestors * before[:, None, :]).sum(-1) + size - 1
