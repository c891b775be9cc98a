"""Block verification of a chain (2403.10444): the accepted length is decided over the draft as a whole.

B rows, N = k + 1 nodes, V vocabulary.
"""

from typing import ClassVar, final

import torch

from paceline.core.batch import Batch
from paceline.core.noise import Stream
from paceline.core.rejection import child_draft_probs
from paceline.core.scores import Scores
from paceline.core.tree import Draw, Outcome, Tree
from paceline.verifiers.draft_probs import masked, outcome_at


@final
class Block:
    """Preserves the target's distribution; accepts at least as many tokens as ``rejection`` on average.

    Acceptance rule: with P_0 = 1 and P_i = min(1, P_(i-1) p(x_i) / q(x_i)), prefix i is accepted with probability
    S_i / (S_i + 1 - P_i), where S_i = sum relu(P_i p - q) over the next token, and P_i itself for the whole draft. The
    longest accepted prefix is kept, whatever happened to shorter ones. The next token is drawn from relu(P_i p - q),
    normalised; after a whole draft from p.
    """

    lossless: ClassVar[bool] = True
    same_tokens: ClassVar[bool] = False
    wants: ClassVar[tuple[Draw, ...]] = (Draw.IID, Draw.FIXED)
    branches: ClassVar[bool] = False

    def __call__(self, tree: Tree, scores: Scores, batch: Batch) -> Outcome:
        """The longest accepted prefix and one token after it."""
        if not batch.sampling.any_sampled:  # every row is greedy
            return batch.match(tree, batch.picks(tree, scores.logits))
        tree = masked(tree, scores)
        position = batch.length[:, None] + tree.depth  # of the token after each node
        warped = batch.warp(scores.logits)  # [B, N, V]
        rest = warped.softmax(-1)  # the distribution after each node; its residual below
        q = child_draft_probs(tree, rest)  # [B, N, V]: 0 after the end, so that the end needs no case of its own
        token = tree.tokens[:, 1:, None]
        ratio = (rest[:, :-1].gather(-1, token) / q[:, :-1].gather(-1, token))[..., 0]  # undefined beyond the end
        weights = [torch.ones_like(rest[:, 0, 0])]
        for i in range(tree.num_nodes - 1):
            weights.append((weights[i] * ratio[:, i]).clamp(max=1))
        weight = torch.stack(weights, dim=1)  # [B, N]
        rest.mul_(weight[..., None])
        rest.sub_(q).clamp_(min=0)
        left = rest.sum(-1)
        accepted = batch.noise.coin(
            left[:, 1:],
            (left + 1 - weight)[:, 1:],
            batch.key(position[:, :-1], Stream.ACCEPT, node=tree.depth[:, 1:]),
        )
        leaf = torch.where(accepted & tree.valid[:, 1:], tree.depth[:, 1:], 0)
        leaf = torch.nn.functional.pad(leaf, (1, 0)).amax(-1)  # the last accepted one, whatever comes before it
        at = leaf[:, None]
        row = at[..., None].expand(-1, 1, rest.shape[-1])
        probs = rest.gather(1, row)
        probs = torch.where(probs.sum(-1, keepdim=True) > 0, probs, warped.gather(1, row).softmax(-1))
        key = batch.key(position.gather(1, at), Stream.RESIDUAL, node=at)
        return outcome_at(tree, leaf, batch.noise.draw(probs, key)[:, 0])
