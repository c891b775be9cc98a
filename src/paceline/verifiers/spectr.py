"""SpecTr (2310.15141): several independent drafts of one sequence, verified together.

B rows, N nodes, V vocabulary.
"""

from typing import ClassVar, final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.noise import Stream
from paceline.core.scores import Scores
from paceline.core.tree import Draw, Outcome, Tree
from paceline.verifiers.draft_probs import masked, outcome_at

BISECTIONS = 16  # of the interval [1, k]; their error costs acceptance, never the distribution


@final
class SpecTr:
    """Preserves the target's distribution, for paths drawn independently of each other from one draft model.

    Verifies any tree in which all nodes after the same tokens were drawn independently from the same distribution: k
    chains from the root, or branches further down. Acceptance rule: at every depth the candidates are the children of
    all nodes whose path equals the tokens accepted so far. Each is accepted with probability min(1, p(x) / (rho q(x))),
    the first accepted token is emitted, and the paths that contain it continue. Fixed choices are skipped. With one
    path this is ``rejection``. Raises ValueError for drafts without recorded distributions.
    """

    lossless: ClassVar[bool] = True
    same_tokens: ClassVar[bool] = False
    wants: ClassVar[tuple[Draw, ...]] = (Draw.IID,)
    branches: ClassVar[bool] = True

    def __call__(self, tree: Tree, scores: Scores, batch: Batch) -> Outcome:
        """The path from the root as long as some candidate is accepted, and one token after it."""
        if tree.probs is None and tree.num_nodes > 1:
            raise ValueError(
                "the verifier 'spectr' needs drafts drawn from a distribution, and these have none; choose 'recursive'"
            )
        if not batch.sampling.any_sampled:  # every row is greedy
            return batch.match(tree, batch.picks(tree, scores.logits))
        tree = masked(tree, scores)
        position = batch.length[:, None] + tree.depth  # of the token after each node
        target_probs = batch.warp(scores.logits).softmax(-1)  # [B, N, V]
        rows = torch.arange(batch.rows, device=target_probs.device)
        node = torch.arange(tree.num_nodes, device=target_probs.device)
        drawn = tree.valid & (tree.source >= 0) & (tree.parents >= 0)
        alive = (node == 0).expand_as(drawn)
        leaf, probs = torch.zeros_like(rows), target_probs[:, 0]  # each row's node, and the distribution after it
        for depth in range(1, tree.max_depth + 1):
            assert tree.probs is not None
            candidate = drawn & alive.gather(1, tree.parents.clamp(min=0))
            number = candidate.sum(-1)
            first = tree.source[rows, candidate.int().argmax(-1)].clamp(min=0)
            q = tree.probs[rows, first].to(target_probs.dtype)
            divisor, taken, share = self._optimal_division(probs, q, number.clamp(min=1).to(target_probs.dtype))
            accepted = candidate & batch.noise.coin(
                torch.where(candidate, probs.gather(1, tree.tokens), 0.0),
                divisor[:, None] * q.gather(1, tree.tokens),
                # Every depth draws noise for all nodes; nodes that are no candidates get keys of their own.
                batch.key(position - 1, Stream.ACCEPT, node=torch.where(candidate, node, node + depth * len(node))),
            )
            hit, chosen = accepted.any(-1), accepted.int().argmax(-1)
            residual = (probs - share[:, None] * taken).clamp_(min=0)
            rejected = (number > 0) & (residual.sum(-1) > 0)
            probs = torch.where(rejected[:, None], residual, probs)
            probs = torch.where(hit[:, None], target_probs[rows, chosen], probs)
            leaf = torch.where(hit, chosen, leaf)
            alive = candidate & hit[:, None] & (tree.tokens == tree.tokens[rows, chosen][:, None])
        at = leaf[:, None]
        key = batch.key(position.gather(1, at), Stream.RESIDUAL, node=at)
        return outcome_at(tree, leaf, batch.noise.draw(probs[:, None], key)[:, 0])

    @staticmethod
    def _optimal_division(p: Tensor, q: Tensor, number: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A valid rho [B] near the least, min(q, p / rho) [B, V], and the multiple of it that candidates emit."""

        def at(rho: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            taken = torch.minimum(q, p / rho[:, None])
            beta = taken.sum(-1).clamp(0, 1)
            return taken, beta, -torch.expm1(number * torch.log1p(-beta))  # 1 - (1 - beta)^k

        low, high = torch.ones_like(number), number  # high is always valid: (1 - beta)^k >= 1 - k beta
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            _, beta, some = at(middle)
            valid = some <= middle * beta
            low, high = torch.where(valid, low, middle), torch.where(valid, middle, high)
        taken, beta, some = at(high)
        return high, taken, torch.where(beta > 0, some / beta, number)
