"""What a request may demand of its tokens that only the host can say: grammars, and processors that others wrote.

A rule is immutable and belongs to a request; what it begins is the state of one text. Knows nothing of rows, drafts or
where the host asks. V vocabulary of the target.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor


class Grammar(ABC):
    """Which tokens may follow, of one text. It is asked by one thread at a time, not always by the same."""

    @abstractmethod
    def advance(self, token: int) -> bool:
        """Go on by ``token``; False, and nothing has changed, where it may not follow.

        After a token that ends the text nothing may follow.
        """

    @abstractmethod
    def retreat(self, count: int) -> None:
        """Take back the last ``count`` tokens that it went on by."""

    def forced(self) -> Sequence[int]:
        """Tokens that will probably come next, because their text must; a good draft, and no more than that."""
        return ()

    @abstractmethod
    def allowed(self) -> Tensor:
        """Which tokens may follow, bool [n] on the CPU; from n on none may. No token at all: the text is complete."""


class Processor(ABC):
    """What is done to the logits of one text."""

    @abstractmethod
    def process(self, tokens: Tensor, logits: Tensor) -> Tensor:
        """Logits [V] from ``logits`` [V], its own copy, for what comes after ``tokens``, int64 [L], prompt included.

        -inf forbids a token.
        """


class Rule(ABC):
    """One demand of a request."""

    @abstractmethod
    def begin(self, prompt: Sequence[int]) -> Grammar | Processor:
        """The state of a text that begins with ``prompt``."""
