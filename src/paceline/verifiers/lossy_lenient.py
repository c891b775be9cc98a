"""Speculative sampling with lenience (2211.17192, appendix). Lossy.

B rows, N = k + 1 nodes, V vocabulary.
"""

from typing import ClassVar, final

import torch

from paceline.core.batch import Batch
from paceline.core.noise import Stream
from paceline.core.rejection import child_draft_probs
from paceline.core.scores import Scores
from paceline.core.tree import Draw, Outcome, Tree, follow
from paceline.verifiers.draft_probs import masked


@final
class LossyLenient:
    """Does not preserve the target's distribution.

    Acceptance rule: as ``rejection``, but x is accepted with probability min(1, p(x) / (lenience q(x))). No token is
    emitted with more than 1 / lenience times the target's probability. At temperature 0 the tokens are those of plain
    decoding. Raises ValueError unless ``lenience`` is above 0 and at most 1 (1 is ``rejection``).
    """

    lossless: ClassVar[bool] = False
    same_tokens: ClassVar[bool] = False
    wants: ClassVar[tuple[Draw, ...]] = (Draw.IID, Draw.FIXED)
    branches: ClassVar[bool] = False

    def __init__(self, *, lenience: float = 0.5) -> None:
        if not 0 < lenience <= 1:
            raise ValueError(f"lenience={lenience}: give a number above 0 and at most 1 (1 is 'rejection')")
        self.lenience = lenience

    def __call__(self, tree: Tree, scores: Scores, batch: Batch) -> Outcome:
        """The longest accepted prefix of the chain and one token after it."""
        if not batch.sampling.any_sampled:  # every row is greedy
            return batch.match(tree, batch.picks(tree, scores.logits))
        tree = masked(tree, scores)
        position = batch.length[:, None] + tree.depth  # of the token after each node
        p = batch.warp(scores.logits).softmax(-1)  # [B, N, V]
        q = child_draft_probs(tree, p)  # [B, N, V], 0 after the end
        token = tree.tokens[:, 1:, None]
        accepted = batch.noise.coin(
            p[:, :-1].gather(-1, token)[..., 0],
            self.lenience * q[:, :-1].gather(-1, token)[..., 0],
            batch.key(position[:, :-1], Stream.ACCEPT, node=tree.depth[:, 1:]),
        )
        leaf, path, length = follow(tree, torch.nn.functional.pad(accepted, (1, 0)))
        at = leaf[:, None]
        row = at[..., None].expand(-1, 1, p.shape[-1])
        probs = p.gather(1, row)
        residual = (probs - q.gather(1, row)).clamp(min=0)
        probs = torch.where(residual.sum(-1, keepdim=True) > 0, residual, probs)
        key = batch.key(position.gather(1, at), Stream.RESIDUAL, node=at)
        return Outcome(path=path, num_committed=length + 1, next=batch.noise.draw(probs, key)[:, 0])
