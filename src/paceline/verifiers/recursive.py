"""Recursive rejection sampling over a tree (2305.09781, 2402.12374).

B rows, N nodes, V vocabulary.
"""

from typing import ClassVar, final

import torch

from paceline.core.batch import Batch
from paceline.core.noise import Stream
from paceline.core.scores import Scores
from paceline.core.tree import Draw, Outcome, Tree, follow
from paceline.verifiers.draft_probs import draft_probs_of, earlier_siblings, masked


@final
class Recursive:
    """Preserves the target's distribution, for siblings drawn with or without replacement and for fixed choices.

    Acceptance rule: the children of a node are tried in the order they were drawn. x is accepted with probability
    min(1, p(x) / q(x)), where p is the target's distribution and q the distribution that x was drawn from; a rejection
    replaces p by relu(p - q), normalised. If no child is accepted, the next token is drawn from the last p. On chains
    this is ``rejection``, token for token.
    """

    lossless: ClassVar[bool] = True
    same_tokens: ClassVar[bool] = False
    wants: ClassVar[tuple[Draw, ...]] = (Draw.NO_REPLACEMENT, Draw.IID, Draw.FIXED)
    branches: ClassVar[bool] = True

    def __call__(self, tree: Tree, scores: Scores, batch: Batch) -> Outcome:
        """From the root through the first accepted child of each node, and one token after the path."""
        if not batch.sampling.any_sampled:  # every row is greedy
            return batch.match(tree, batch.picks(tree, scores.logits))
        tree = masked(tree, scores)
        position = batch.length[:, None] + tree.depth  # of the token after each node
        residual = batch.warp(scores.logits).softmax(-1)  # [B, N, V] given the children rejected so far
        rows = torch.arange(batch.rows, device=residual.device)
        one = torch.ones_like(residual[:, 0, 0])
        target, draft = [one], [one]  # probabilities of each node's token
        for node in range(1, tree.num_nodes):  # parents come before children, siblings in draw order
            parent = tree.parents[:, node].clamp(min=0)
            token = tree.tokens[:, node, None]
            p, q = residual[rows, parent], draft_probs_of(tree, node, residual)
            drawn = q.gather(1, token)
            # A node of draft probability 0, as when no token was left to draw, is skipped.
            real = tree.valid[:, node, None] & (drawn > 0)
            target.append(torch.where(real, p.gather(1, token), 0.0)[:, 0])
            draft.append(drawn[:, 0])
            rest = (p - q).clamp_(min=0)
            mass = rest.sum(-1, keepdim=True)
            residual[rows, parent] = torch.where(real & (mass > 0), rest / mass, p)
        accepted = batch.noise.coin(
            torch.stack(target, dim=1)[:, 1:],
            torch.stack(draft, dim=1)[:, 1:],
            batch.key(position[:, 1:] - 1, Stream.ACCEPT, node=torch.arange(1, tree.num_nodes, device=residual.device)),
        )
        accepted = torch.nn.functional.pad(accepted, (1, 0)) & tree.valid
        if not tree.chain:
            accepted = accepted & ~(earlier_siblings(tree) & accepted[:, None, :]).any(-1)
        leaf, path, length = follow(tree, accepted)
        at = leaf[:, None]
        key = batch.key(position.gather(1, at), Stream.RESIDUAL, node=at)
        token = batch.noise.draw(residual[rows, leaf][:, None], key)[:, 0]
        return Outcome(path=path, num_committed=length + 1, next=token)
