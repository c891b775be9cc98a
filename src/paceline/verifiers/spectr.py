"""SpecTr: several independent drafts of one text, verified together (2310.15141).

B rows, N nodes, V vocabulary.
"""

from typing import ClassVar, final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.noise import Stream
from paceline.core.tree import Draw, Outcome, Tree
from paceline.verifiers.draft_probs import follow_picks, outcome_at

BISECTIONS = 16  # of the interval [1, k]; whatever they leave costs acceptance, never the distribution


@final
class SpecTr:
    """The target's distribution, over paths drawn independently of each other from one draft model.

    Takes any tree in which all nodes after the same text were drawn independently from the same distribution: k chains
    from the root, or branches further down. At every depth the candidates are the children of all nodes whose text is
    what was emitted; each is accepted with probability min(1, p(x) / (rho q(x))), the first accepted token is emitted,
    and every path that has it stays alive. Fixed choices are passed over. With one path this is ``rejection``. Raises
    ValueError for drafts without recorded distributions."""

    lossless: ClassVar[bool] = True
    same_tokens: ClassVar[bool] = False
    wants: ClassVar[tuple[Draw, ...]] = (Draw.IID,)
    branches: ClassVar[bool] = True

    def __call__(self, tree: Tree, logits: Tensor, batch: Batch) -> Outcome:
        """Down from the root as long as some candidate is accepted."""
        if tree.probs is None and tree.num_nodes > 1:
            raise ValueError(
                "the verifier 'spectr' needs drafts drawn from a distribution, and these have none; choose 'recursive'"
            )
        if not batch.sampling.any_sampled:  # the distribution is certain everywhere
            return follow_picks(tree, batch.picks(tree, logits))
        position = batch.length[:, None] + tree.depth  # of the token after each node
        target_probs = batch.scores(logits).softmax(-1)  # [B, N, V]
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
            divisor, taken, share = self._plan(probs, q, number.clamp(min=1).to(target_probs.dtype))
            keep = candidate & batch.noise.coin(
                torch.where(candidate, probs.gather(1, tree.tokens), 0.0),
                divisor[:, None] * q.gather(1, tree.tokens),
                # Each depth asks for a coin of every node; those that are no candidates get lanes of their own.
                batch.key(position - 1, Stream.ACCEPT, lane=torch.where(candidate, node, node + depth * len(node))),
            )
            hit, chosen = keep.any(-1), keep.int().argmax(-1)
            rest = (probs - share[:, None] * taken).clamp_(min=0)
            refused = (number > 0) & (rest.sum(-1) > 0)
            probs = torch.where(refused[:, None], rest, probs)
            probs = torch.where(hit[:, None], target_probs[rows, chosen], probs)
            leaf = torch.where(hit, chosen, leaf)
            alive = candidate & hit[:, None] & (tree.tokens == tree.tokens[rows, chosen][:, None])
        at = leaf[:, None]
        key = batch.key(position.gather(1, at), Stream.RESIDUAL, lane=at)
        return outcome_at(tree, leaf, batch.noise.draw(probs[:, None], key)[:, 0])

    @staticmethod
    def _plan(p: Tensor, q: Tensor, number: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """rho [B], min(q, p / rho) [B, V] and the factor [B] by which ``number`` [B] candidates emit it."""

        def reach(rho: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            taken = torch.minimum(q, p / rho[:, None])
            beta = taken.sum(-1).clamp(0, 1)
            return taken, beta, -torch.expm1(number * torch.log1p(-beta))  # 1 - (1 - beta)^k

        low, high = torch.ones_like(number), number  # high is always valid: (1 - beta)^k >= 1 - k beta
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            _, beta, some = reach(middle)
            valid = some <= middle * beta
            low, high = torch.where(valid, low, middle), torch.where(valid, middle, high)
        taken, beta, some = reach(high)
        return high, taken, torch.where(beta > 0, some / beta, number)
