"""The interface between verifiers and the decoder.

B rows, N nodes, V vocabulary.
"""

from abc import abstractmethod
from typing import ClassVar, Protocol, runtime_checkable

from paceline.core.batch import Batch
from paceline.core.scores import Scores
from paceline.core.tree import Draw, Outcome, Tree


@runtime_checkable
class Verifier(Protocol):
    """Accepts a path of a draft tree and adds one token.

    Pure: the outcome is a function of the tree, the target's logits and the noise of the rows.
    """

    lossless: ClassVar[bool]  # the output distribution is the target's
    same_tokens: ClassVar[bool]  # the output tokens are those of plain decoding with the same seed
    wants: ClassVar[tuple[Draw, ...]]  # draws that it can verify, best first
    branches: ClassVar[bool]  # whether it can verify trees that branch

    @abstractmethod
    def __call__(self, tree: Tree, scores: Scores, batch: Batch) -> Outcome:
        """The outcome from processed ``logits`` [B, N, V] at every node, before stop tokens and limits are applied."""
        ...
