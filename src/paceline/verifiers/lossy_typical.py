"""Typical acceptance (2401.10774): accepts tokens that are likely enough under the target. Lossy.

B rows, N nodes, V vocabulary.
"""

from typing import ClassVar, final

import torch

from paceline.core.batch import Batch
from paceline.core.scores import Scores
from paceline.core.tree import Draw, Outcome, Tree
from paceline.verifiers.draft_probs import outcome_at


@final
class LossyTypical:
    """Does not preserve the target's distribution.

    Acceptance rule: a drafted token x is accepted if p(x) > min(epsilon, delta exp(-H(p))), where H is the entropy of
    p. The longest accepted path is taken, the likeliest among equally long ones, and one token sampled from the target
    follows it. At temperature 0 the tokens are those of plain decoding. Raises ValueError unless both bounds are above
    0 and at most 1.
    """

    lossless: ClassVar[bool] = False
    same_tokens: ClassVar[bool] = False
    wants: ClassVar[tuple[Draw, ...]] = (Draw.FIXED, Draw.NO_REPLACEMENT, Draw.IID)
    branches: ClassVar[bool] = True

    def __init__(self, *, epsilon: float = 0.09, delta: float = 0.3) -> None:
        if not (0 < epsilon <= 1 and 0 < delta <= 1):
            raise ValueError(f"epsilon={epsilon}, delta={delta}: give numbers above 0 and at most 1")
        self.epsilon, self.delta = epsilon, delta

    def __call__(self, tree: Tree, scores: Scores, batch: Batch) -> Outcome:
        """The longest accepted path and one token of the target after it."""
        if not batch.sampling.any_sampled:  # every row is greedy
            return batch.match(tree, batch.picks(tree, scores.logits))
        position = batch.length[:, None] + tree.depth  # of the token after each node
        probs = batch.warp(scores.logits).softmax(-1)  # [B, N, V]
        bound = (self.delta * torch.exp(torch.xlogy(probs, probs).sum(-1))).clamp(max=self.epsilon)  # [B, N]
        rows = torch.arange(batch.rows, device=probs.device)[:, None]
        parent = tree.parents.clamp(min=0)
        probability = probs[rows, parent, tree.tokens]
        root = tree.parents < 0
        accepted = (tree.valid & (probability > bound.gather(1, parent))) | root
        reached = (accepted[:, None, :] | ~tree.ancestors).all(-1)  # [B, N]
        score = torch.where(accepted & ~root, probability.log(), 0.0)
        score = (tree.ancestors * score[:, None, :]).sum(-1)  # log-probability of the path to each node
        depth = torch.where(reached, tree.depth, -1)
        leaf = torch.where(depth == depth.amax(-1, keepdim=True), score, -torch.inf).argmax(-1)
        at = leaf[:, None]
        index = at[..., None].expand(-1, 1, scores.logits.shape[-1])
        token = batch.pick(scores.logits.gather(1, index), position.gather(1, at))
        return outcome_at(tree, leaf, token[:, 0])
