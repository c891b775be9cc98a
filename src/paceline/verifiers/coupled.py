"""Coupled verification (2408.07978): the target samples with its own noise, and matching drafts are accepted.

B rows, N nodes, V vocabulary.
"""

from typing import ClassVar, final

from paceline.core.batch import Batch
from paceline.core.scores import Scores
from paceline.core.tree import Draw, Outcome, Tree


@final
class Coupled:
    """Preserves the tokens of plain decoding with the same seed, for any draft.

    Acceptance rule: a node is accepted if its token equals the target's pick at its parent. The noise of a pick is a
    function of (seed, position), so the pick is the token that plain decoding samples after the same path. Drafts drawn
    with that noise (``shared``) are accepted most often.
    """

    lossless: ClassVar[bool] = True
    same_tokens: ClassVar[bool] = True
    wants: ClassVar[tuple[Draw, ...]] = (Draw.SHARED, Draw.FIXED, Draw.IID, Draw.NO_REPLACEMENT)
    branches: ClassVar[bool] = True

    def __call__(self, tree: Tree, scores: Scores, batch: Batch) -> Outcome:
        """The path of matching nodes from the root, and the pick after it."""
        return batch.match(tree, batch.picks(tree, scores.logits))
