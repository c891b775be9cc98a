"""Speculative sampling of a chain by rejection (2211.17192, 2302.01318).

V vocabulary.
"""

from typing import ClassVar, final

from paceline.core.batch import Batch
from paceline.core.rejection import verify_by_rejection
from paceline.core.scores import Scores
from paceline.core.tree import Draw, Outcome, Tree
from paceline.verifiers.draft_probs import masked


@final
class Rejection:
    """Preserves the target's distribution, not the tokens of plain decoding.

    Acceptance rule: x is accepted with probability min(1, p(x) / q(x)). At the first rejection the next token is drawn
    from relu(p - q), normalised; after a whole draft a bonus token is drawn from p. A fixed choice has a one-hot q: it
    is accepted with probability p(x), and replaced by a draw from p without x. The noise is keyed by the row's step and
    the node, so it is independent of the draft's and never used again.
    """

    lossless: ClassVar[bool] = True
    same_tokens: ClassVar[bool] = False
    wants: ClassVar[tuple[Draw, ...]] = (Draw.IID, Draw.FIXED)
    branches: ClassVar[bool] = False

    def __call__(self, tree: Tree, scores: Scores, batch: Batch) -> Outcome:
        """The longest accepted prefix of the chain and one token after it."""
        if not batch.sampling.any_sampled:  # every row is greedy
            return batch.match(tree, batch.picks(tree, scores.logits))
        tree = masked(tree, scores)
        return verify_by_rejection(tree, batch.warp(scores.logits).softmax(-1), batch)
