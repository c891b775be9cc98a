"""The target picks at every node with its own noise; the child that equals the pick is followed (2408.07978).

B rows, N nodes, V vocabulary.
"""

from typing import ClassVar, final

from paceline.core.batch import Batch
from paceline.core.scores import Scores
from paceline.core.tree import Draw, Outcome, Tree
from paceline.verifiers.draft_probs import follow_picks


@final
class Coupled:
    """The tokens of plain decoding with the same seed, whatever was drafted.

    The noise of a pick is a function of (seed, position), so the pick at a node is the token that plain decoding would
    choose after that node's path. Drafts drawn with the same noise (``shared``) are accepted most often.
    """

    lossless: ClassVar[bool] = True
    same_tokens: ClassVar[bool] = True
    wants: ClassVar[tuple[Draw, ...]] = (Draw.SHARED, Draw.FIXED, Draw.IID, Draw.NO_REPLACEMENT)
    branches: ClassVar[bool] = True

    def __call__(self, tree: Tree, scores: Scores, batch: Batch) -> Outcome:
        """Follow the picks from the root as far as the tree goes."""
        return follow_picks(tree, batch.picks(tree, scores.logits))
