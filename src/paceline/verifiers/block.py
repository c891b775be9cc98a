"""Block verification of a chain (2403.10444): how much is kept is decided over the draft as a whole.

B rows, N = k + 1 nodes, V vocabulary.
"""

from typing import ClassVar, final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.noise import Stream
from paceline.core.tree import Draw, Outcome, Tree
from paceline.verifiers.draft_probs import child_draft_probs, follow_picks, outcome_at


@final
class Block:
    """The target's distribution; keeps at least as many tokens as ``rejection`` on average, and often more.

    Every prefix of the draft is tested, and the longest that passes is kept, whatever happened to shorter ones: an
    unlikely token may be made up for by those after it. The token after the prefix comes from what the prefix's
    weight P leaves of the target's distribution, relu(P p - q); after a whole draft from p.
    """

    lossless: ClassVar[bool] = True
    same_tokens: ClassVar[bool] = False
    wants: ClassVar[tuple[Draw, ...]] = (Draw.IID, Draw.FIXED)
    branches: ClassVar[bool] = False

    def __call__(self, tree: Tree, logits: Tensor, batch: Batch) -> Outcome:
        """The longest prefix that passes and one token after it."""
        if not batch.sampling.any_sampled:  # the distribution is certain everywhere
            return follow_picks(tree, batch.picks(tree, logits))
        position = batch.length[:, None] + tree.depth  # of the token after each node
        scores = batch.scores(logits)  # [B, N, V]
        rest = scores.softmax(-1)  # the distribution after each node, and below what the rule leaves of it
        q = child_draft_probs(tree, rest)  # [B, N, V]: 0 after the end, so that the end needs no case of its own
        token = tree.tokens[:, 1:, None]
        ratio = (rest[:, :-1].gather(-1, token) / q[:, :-1].gather(-1, token))[..., 0]  # no sense beyond the end
        weights = [torch.ones_like(rest[:, 0, 0])]
        for i in range(tree.num_nodes - 1):
            weights.append((weights[i] * ratio[:, i]).clamp(max=1))
        weight = torch.stack(weights, dim=1)  # [B, N]
        rest.mul_(weight[..., None])
        rest.sub_(q).clamp_(min=0)
        left = rest.sum(-1)
        passes = batch.noise.coin(
            left[:, 1:],
            (left + 1 - weight)[:, 1:],
            batch.key(position[:, :-1], Stream.ACCEPT, lane=tree.depth[:, 1:]),
        )
        leaf = torch.where(passes & tree.valid[:, 1:], tree.depth[:, 1:], 0)
        leaf = torch.nn.functional.pad(leaf, (1, 0)).amax(-1)  # the last that passes: no break at a failure
        at = leaf[:, None]
        row = at[..., None].expand(-1, 1, rest.shape[-1])
        probs = rest.gather(1, row)
        probs = torch.where(probs.sum(-1, keepdim=True) > 0, probs, scores.gather(1, row).softmax(-1))
        key = batch.key(position.gather(1, at), Stream.RESIDUAL, lane=at)
        return outcome_at(tree, leaf, batch.noise.draw(probs, key)[:, 0])
