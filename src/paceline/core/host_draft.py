"""Drafts that are made on the host before a step, as values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class HostDraft:
    """A draft and what it is made from.

    ``parents`` (None: a chain) are numbers of earlier ``tokens``, -1 for the root. ``match`` tokens before the draft
    are those before what it copies, and ``probs`` (None: unknown) are the chances that its own counts give each token.
    """

    tokens: Sequence[int]
    parents: Sequence[int] | None = None
    match: int = 0
    probs: Sequence[float] | None = None
    origin: int = 0

    @property
    def score(self) -> float:
        """The accepted tokens that its own counts promise; all of them, where there are none."""
        return len(self.tokens) if self.probs is None else sum(self.probs)

    def first(self, count: int) -> "HostDraft":
        """Its first ``count`` tokens."""
        if count >= len(self.tokens):
            return self
        parents = None if self.parents is None else self.parents[:count]
        probs = None if self.probs is None else self.probs[:count]
        return HostDraft(self.tokens[:count], parents, self.match, probs, self.origin)

    def named(self, origin: int) -> "HostDraft":
        """The same draft by another number of its drafter."""
        return HostDraft(self.tokens, self.parents, self.match, self.probs, origin)


NO_TOKENS = HostDraft(())
