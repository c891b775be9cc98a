"""Speculative sampling of a chain by rejection (2211.17192, 2302.01318), for every stage that verifies.

B rows, N nodes, D = N - 1, V vocabulary.
"""

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.noise import Stream
from paceline.core.tree import Outcome, Tree, follow


def verify_by_rejection(tree: Tree, probs: Tensor, batch: Batch) -> Outcome:
    """The longest accepted prefix of a chain and one token after it, distributed by ``probs`` [B, N, V].

    ``probs`` are the verifying model's after each node. A token x that was drawn from q is accepted with probability
    min(1, p(x) / q(x)). At the first rejection the next token is drawn from relu(p - q), normalised; after a whole
    draft it is drawn from p. A fixed choice has a one-hot q. Given the tokens before it, each token has the
    distribution p and depends on nothing that was drawn before, whatever the draft: the noise is keyed by the stage and
    the step of ``batch`` and by the node.
    """
    position = batch.length[:, None] + tree.depth  # of the token after each node
    q = child_draft_probs(tree, probs)  # [B, N, V]: the distribution that each node's child was drawn from, or 0
    token = tree.tokens[:, 1:, None]
    node = tree.depth[:, 1:]
    accepted = batch.noise.coin(
        probs[:, :-1].gather(-1, token)[..., 0],
        q[:, :-1].gather(-1, token)[..., 0],
        batch.key(position[:, :-1], Stream.ACCEPT, node=node),
    )
    leaf, path, length = follow(tree, torch.nn.functional.pad(accepted, (1, 0)))
    at = leaf[:, None]
    row = at[..., None].expand(-1, 1, probs.shape[-1])
    left = probs.gather(1, row)
    rejected = q.gather(1, row)  # 0 after a whole draft: the bonus token comes from p
    residual = (left - rejected).clamp(min=0)
    left = torch.where(residual.sum(-1, keepdim=True) > 0, residual, left)
    key = batch.key(position.gather(1, at), Stream.RESIDUAL, node=at)
    return Outcome(path=path, num_committed=length + 1, next=batch.noise.draw(left, key)[:, 0])


def child_draft_probs(tree: Tree, like: Tensor) -> Tensor:
    """The distribution that the child of each node of a chain was drawn from [B, N, V]; 0 without a valid child.

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
