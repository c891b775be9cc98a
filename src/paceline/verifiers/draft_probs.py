"""Draft distributions and paths of a tree, as verifiers need them.

B rows, N nodes, V vocabulary.
"""

from dataclasses import replace

import torch
from torch import Tensor

from paceline.core.scores import Scores
from paceline.core.tree import Draw, Outcome, Tree, follow


def masked(tree: Tree, scores: Scores) -> Tree:
    """``tree`` with its draft probabilities restricted to the tokens that are allowed after each parent.

    Draft tokens that are not allowed were pruned before the target's forward: the others have the distribution that
    they were drawn from, given that the token is allowed.
    """
    mask = scores.mask
    if mask is None or tree.probs is None or tree.num_nodes == 1:
        return tree
    source, parents = tree.source[mask.rows], tree.parents[mask.rows].clamp(min=0)
    number = tree.probs.shape[1]
    parent = torch.zeros(len(source), number + 1, dtype=torch.int64, device=source.device)
    parent.scatter_(1, torch.where(source >= 0, source, number), parents)  # all nodes of a distribution have one parent
    allowed = mask.allowed.gather(1, parent[:, :number, None].expand(-1, -1, mask.allowed.shape[-1]))
    probs = tree.probs.clone()
    own = probs[mask.rows] * allowed
    probs[mask.rows] = own / own.sum(-1, keepdim=True).clamp(min=torch.finfo(own.dtype).tiny)
    return replace(tree, probs=probs)


def draft_probs_of(tree: Tree, node: int, like: Tensor) -> Tensor:
    """The distribution [B, V] that ``node`` was drawn from, in the precision of ``like``; one-hot for a fixed choice.

    For a draw without replacement, the tokens of earlier valid siblings are removed and the rest is normalised; all
    zeros if nothing is left. Undefined for invalid nodes.
    """
    index, token = tree.source[:, node], tree.tokens[:, node, None]
    rows = torch.arange(len(token), device=token.device)
    fixed = (index < 0).to(like.dtype)[:, None]
    if tree.probs is None:
        probs = torch.zeros(len(token), like.shape[-1], dtype=like.dtype, device=like.device)
        return probs.scatter_add_(1, token, fixed)
    probs = tree.probs[rows, index.clamp(min=0)].to(like.dtype)
    if not tree.chain and node > 1:
        alone = (tree.draw[:, node] == int(Draw.NO_REPLACEMENT))[:, None]
        gone = alone & tree.valid[:, 1:node] & (tree.parents[:, 1:node] == tree.parents[:, node, None])
        # The other entries write the token's own probability back; the smallest of several writes counts.
        value = torch.where(gone, 0.0, probs.gather(1, token))
        probs.scatter_reduce_(1, torch.where(gone, tree.tokens[:, 1:node], token), value, "amin")
        probs = probs / torch.where(alone & gone.any(-1, keepdim=True), probs.sum(-1, keepdim=True), 1.0).clamp(
            min=1e-37
        )
    return (probs * (1 - fixed)).scatter_add_(1, token, fixed)


def earlier_siblings(tree: Tree) -> Tensor:
    """[B, N, N] bool; [b, n, m]: m is a valid sibling of n with a smaller number."""
    index = torch.arange(tree.num_nodes, device=tree.tokens.device)
    same = tree.parents[:, :, None] == tree.parents[:, None, :]
    return same & tree.valid[:, None, :] & (index[None, :] < index[:, None])


def outcome_at(tree: Tree, leaf: Tensor, token: Tensor) -> Outcome:
    """The outcome that accepts the path to ``leaf`` [B] and adds ``token`` [B]."""
    on_path = tree.ancestors.gather(1, leaf[:, None, None].expand(-1, 1, tree.num_nodes))[:, 0]
    _, path, length = follow(tree, on_path)
    return Outcome(path=path, num_committed=length + 1, next=token)
