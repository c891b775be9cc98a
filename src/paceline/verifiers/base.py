"""What a verifier is to the step. Knows nothing of drafters beyond how their tokens were drawn.

B rows, N nodes, V vocabulary.
"""

from abc import abstractmethod
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.tree import Draw, Outcome, Tree


@runtime_checkable
class Verifier(Protocol):
    """Pure: the outcome is a function of the tree, the target's logits and the rows' noise."""

    lossless: ClassVar[bool]  # the emitted distribution is the target's
    same_tokens: ClassVar[bool]  # beyond the distribution: the tokens are those of plain decoding with the same seed
    wants: ClassVar[tuple[Draw, ...]]  # draws it can take, best first
    branches: ClassVar[bool]  # whether it can follow trees that branch

    @abstractmethod
    def __call__(self, tree: Tree, logits: Tensor, batch: Batch) -> Outcome:
        """Decide from processed ``logits`` [B, N, V] at every node; before clipping at stop tokens and limits."""
        ...
