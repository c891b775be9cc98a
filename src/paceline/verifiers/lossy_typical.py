"""Typical acceptance (2401.10774): keeps what the target finds likely enough. Does not keep the target's distribution.

B rows, N nodes, V vocabulary.
"""

from typing import ClassVar, final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.tree import Draw, Outcome, Tree
from paceline.verifiers.draft_probs import follow_picks, outcome_at


@final
class LossyTypical:
    """Not the target's distribution: a drafted token is kept if p(x) > min(epsilon, delta exp(-H(p))), H being p's
    entropy.

    The longest kept path is followed, the likeliest among equally long ones, and a token of the target's distribution
    ends the step. At temperature 0 the tokens are those of plain decoding. Raises ValueError unless both bounds are
    above 0 and at most 1."""

    lossless: ClassVar[bool] = False
    same_tokens: ClassVar[bool] = False
    wants: ClassVar[tuple[Draw, ...]] = (Draw.FIXED, Draw.NO_REPLACEMENT, Draw.IID)
    branches: ClassVar[bool] = True

    def __init__(self, *, epsilon: float = 0.09, delta: float = 0.3) -> None:
        if not (0 < epsilon <= 1 and 0 < delta <= 1):
            raise ValueError(f"epsilon={epsilon}, delta={delta}: give numbers above 0 and at most 1")
        self.epsilon, self.delta = epsilon, delta

    def __call__(self, tree: Tree, logits: Tensor, batch: Batch) -> Outcome:
        """The longest path of tokens that are likely enough, and one token of the target's after it."""
        if not batch.sampling.any_sampled:  # the distribution is certain everywhere
            return follow_picks(tree, batch.picks(tree, logits))
        position = batch.length[:, None] + tree.depth  # of the token after each node
        probs = batch.scores(logits).softmax(-1)  # [B, N, V]
        bound = (self.delta * torch.exp(torch.xlogy(probs, probs).sum(-1))).clamp(max=self.epsilon)  # [B, N]
        rows = torch.arange(batch.rows, device=probs.device)[:, None]
        parent = tree.parents.clamp(min=0)
        chance = probs[rows, parent, tree.tokens]
        root = tree.parents < 0
        kept = (tree.valid & (chance > bound.gather(1, parent))) | root
        reached = (kept[:, None, :] | ~tree.ancestors).all(-1)  # [B, N]
        score = torch.where(kept & ~root, chance.log(), 0.0)
        score = (tree.ancestors * score[:, None, :]).sum(-1)  # log-probability of the path to each node
        depth = torch.where(reached, tree.depth, -1)
        leaf = torch.where(depth == depth.amax(-1, keepdim=True), score, -torch.inf).argmax(-1)
        at = leaf[:, None]
        token = batch.pick(logits.gather(1, at[..., None].expand(-1, 1, logits.shape[-1])), position.gather(1, at))
        return outcome_at(tree, leaf, token[:, 0])
