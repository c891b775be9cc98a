"""Constraints of a request that run on the host: grammars and external logits processors.

A constraint is immutable and belongs to a request; ``begin`` makes the state for one sequence. V vocabulary of the
target.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor


class Grammar(ABC):
    """Which tokens may follow in one sequence. Called by one thread at a time, not always by the same."""

    @abstractmethod
    def advance(self, token: int) -> bool:
        """Advance by ``token``; returns False, and changes nothing, where it may not follow.

        After a token that ends the sequence nothing may follow.
        """

    @abstractmethod
    def rollback(self, count: int) -> None:
        """Undo the last ``count`` tokens."""

    def forced(self) -> Sequence[int]:
        """Likely next tokens, because their text is forced: a good draft, but not guaranteed."""
        return ()

    @abstractmethod
    def allowed(self) -> Tensor:
        """Which tokens may follow, bool [n] on the CPU; ids from n on may not. All false: the output is complete."""


class Processor(ABC):
    """A logits processor of one sequence."""

    @abstractmethod
    def process(self, tokens: Tensor, logits: Tensor) -> Tensor:
        """Logits [V] from ``logits`` [V], its own copy, for what comes after ``tokens``, int64 [L], prompt included.

        -inf forbids a token.
        """


class Constraint(ABC):
    """A constraint of a request."""

    @abstractmethod
    def begin(self, prompt: Sequence[int]) -> Grammar | Processor:
        """The state of a sequence that begins with ``prompt``."""


Rule = Constraint  # deprecated name
