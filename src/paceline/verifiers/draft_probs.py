"""What verifiers read off a tree: the distribution that each node was drawn from, and paths. Decides nothing.

B rows, N nodes, V vocabulary.
"""

import torch
from torch import Tensor

from paceline.core.tree import Draw, Outcome, Tree, follow


def child_draft_probs(tree: Tree, like: Tensor) -> Tensor:
    """Of a chain, the distribution that each node's child was drawn from [B, N, V]; 0 where it has no valid child.

    In the precision of ``like``; the distribution of a fixed choice is one-hot.
    """
    pad = torch.nn.functional.pad
    index, token, valid = (pad(field[:, 1:], (0, 1)) for field in (tree.source, tree.tokens, tree.valid))
    if tree.probs is None or tree.num_nodes == 1:
        probs = torch.zeros(*token.shape, like.shape[-1], dtype=like.dtype, device=like.device)
    else:
        rows = torch.arange(len(token), device=token.device)[:, None]
        probs = tree.probs[rows, index.clamp(min=0)].to(like.dtype)
        probs.mul_((valid & (index >= 0))[..., None])
    return probs.scatter_add_(-1, token[..., None], (valid & (index < 0)).to(like.dtype)[..., None])


def draft_probs_of(tree: Tree, node: int, like: Tensor) -> Tensor:
    """The distribution [B, V] that ``node`` was drawn from, in the precision of ``like``; one-hot for a fixed choice.

    A draw without replacement has its recorded distribution without the tokens of the valid siblings before it; all
    zeros where these leave nothing. What it says of invalid nodes means nothing."""
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
        # The other entries write the token's own probability back; the least of several writes stands.
        value = torch.where(gone, 0.0, probs.gather(1, token))
        probs.scatter_reduce_(1, torch.where(gone, tree.tokens[:, 1:node], token), value, "amin")
        probs = probs / torch.where(alone & gone.any(-1, keepdim=True), probs.sum(-1, keepdim=True), 1.0).clamp(
            min=1e-37
        )
    return (probs * (1 - fixed)).scatter_add_(1, token, fixed)


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
