"""The target's own token at every node, drafts being followed where they happen to equal it.

B rows, N nodes, V vocabulary.
"""

from typing import ClassVar, final

from paceline.core.batch import Batch
from paceline.core.scores import Scores
from paceline.core.tree import Draw, Outcome, Tree
from paceline.verifiers.draft_probs import follow_picks


@final
class Match:
    """The tokens of plain decoding with the same seed, from drafts that know nothing of the target's noise.

    As ``coupled``, but never asks a drafter to draw with the target's noise: the likeliest tokens are asked for, since
    a fixed choice x is kept with probability p(x), and drafts with noise of their own are taken.
    """

    lossless: ClassVar[bool] = True
    same_tokens: ClassVar[bool] = True
    wants: ClassVar[tuple[Draw, ...]] = (Draw.FIXED, Draw.NO_REPLACEMENT, Draw.IID)
    branches: ClassVar[bool] = True

    def __call__(self, tree: Tree, scores: Scores, batch: Batch) -> Outcome:
        """Follow the target's tokens from the root as far as the tree has them."""
        return follow_picks(tree, batch.picks(tree, scores.logits))
