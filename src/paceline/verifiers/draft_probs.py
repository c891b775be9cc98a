"""What verifiers read off a tree: the law that each node was drawn from, and paths. Decides nothing.

B rows, N nodes, V vocabulary.
"""

import torch
from torch import Tensor

from paceline.core.tree import Draw, Outcome, Tree, follow


def child_laws(tree: Tree, like: Tensor) -> Tensor:
    """Of a chain, the law that each node's child was drawn from [B, N, V]; 0 where it has no valid child.

    In the precision of ``like``; the law of a fixed choice is one-hot.
    """
    pad = torch.nn.functional.pad
    index, token, valid = (pad(field[:, 1:], (0, 1)) for field in (tree.law, tree.tokens, tree.valid))
    if tree.laws is None or tree.num_nodes == 1:
        laws = torch.zeros(*token.shape, like.shape[-1], dtype=like.dtype, device=like.device)
    else:
        rows = torch.arange(len(token), device=token.device)[:, None]
        laws = tree.laws[rows, index.clamp(min=0)].to(like.dtype)
        laws.mul_((valid & (index >= 0))[..., None])
    return laws.scatter_add_(-1, token[..., None], (valid & (index < 0)).to(like.dtype)[..., None])


def law_of(tree: Tree, node: int, like: Tensor) -> Tensor:
    """The law [B, V] that ``node`` was drawn from, in the precision of ``like``; one-hot for a fixed choice.

    A draw without replacement has its recorded law without the tokens of the valid siblings before it; all zeros where
    these leave nothing. What it says of invalid nodes means nothing.
    """
    index, token = tree.law[:, node], tree.tokens[:, node, None]
    rows = torch.arange(len(token), device=token.device)
    fixed = (index < 0).to(like.dtype)[:, None]
    if tree.laws is None:
        law = torch.zeros(len(token), like.shape[-1], dtype=like.dtype, device=like.device)
        return law.scatter_add_(1, token, fixed)
    law = tree.laws[rows, index.clamp(min=0)].to(like.dtype)
    if not tree.chain and node > 1:
        alone = (tree.draw[:, node] == int(Draw.NO_REPLACEMENT))[:, None]
        gone = alone & tree.valid[:, 1:node] & (tree.parents[:, 1:node] == tree.parents[:, node, None])
        # The other entries write the token's own probability back; the least of several writes stands.
        value = torch.where(gone, 0.0, law.gather(1, token))
        law.scatter_reduce_(1, torch.where(gone, tree.tokens[:, 1:node], token), value, "amin")
        law = law / torch.where(alone & gone.any(-1, keepdim=True), law.sum(-1, keepdim=True), 1.0).clamp(min=1e-37)
    return (law * (1 - fixed)).scatter_add_(1, token, fixed)


def earlier_siblings(tree: Tree) -> Tensor:
    """[B, N, N] bool; [b, n, m]: m is a valid sibling of n and stands before it."""
    index = torch.arange(tree.num_nodes, device=tree.tokens.device)
    same = tree.parents[:, :, None] == tree.parents[:, None, :]
    return same & tree.valid[:, None, :] & (index[None, :] < index[:, None])


def follow_picks(tree: Tree, picks: Tensor) -> Outcome:
    """The outcome that keeps drafts as long as they equal ``picks`` [B, N], the target's own token after each node."""
    leaf, path, length = follow(tree, tree.tokens == picks.gather(1, tree.parents.clamp(min=0)))
    return Outcome(path=path, num_committed=length + 1, next=picks.gather(1, leaf[:, None])[:, 0], picks=picks)


def outcome_at(tree: Tree, leaf: Tensor, token: Tensor) -> Outcome:
    """The outcome that keeps the path to ``leaf`` [B] and goes on with ``token`` [B]."""
    on_path = tree.ancestors.gather(1, leaf[:, None, None].expand(-1, 1, tree.num_nodes))[:, 0]
    _, path, length = follow(tree, on_path)
    return Outcome(path=path, num_committed=length + 1, next=token)
