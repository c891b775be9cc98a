"""Token matching: the target samples with its own noise, and drafts made without that noise are accepted if equal.

B rows, N nodes, V vocabulary.
"""

from typing import ClassVar, final

from paceline.core.batch import Batch
from paceline.core.scores import Scores
from paceline.core.tree import Draw, Outcome, Tree


@final
class Match:
    """Preserves the tokens of plain decoding with the same seed.

    Acceptance rule: as ``coupled`` (2408.07978), but drafts are never drawn with the target's noise. It prefers the
    likeliest tokens, since a fixed choice x is accepted with probability p(x).
    """

    lossless: ClassVar[bool] = True
    same_tokens: ClassVar[bool] = True
    wants: ClassVar[tuple[Draw, ...]] = (Draw.FIXED, Draw.NO_REPLACEMENT, Draw.IID)
    branches: ClassVar[bool] = True

    def __call__(self, tree: Tree, scores: Scores, batch: Batch) -> Outcome:
        """The path of matching nodes from the root, and the target's token after it."""
        return batch.match(tree, batch.picks(tree, scores.logits))
