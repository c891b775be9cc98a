"""An index of token sequences on the host: where the last tokens of a sequence occurred before, and what followed.

The plain implementation, which searches every position; kernels/cpu/token_index.py links positions of equal hashes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar, final

from paceline.core.host_draft import NO_TOKENS, HostDraft

SEPARATOR = -1  # after a sequence that has ended
LONG = 4  # tokens: occurrences that match so many hide the shorter ones
MAX_OCCURRENCES = 64  # that a draft is made from, the latest
MAX_DRAFT = 256  # tokens of a draft
Place = TypeVar("Place")  # of an occurrence


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """Where the last tokens of a sequence occurred before."""

    position: int  # of the last token that matches
    length: int  # tokens that match


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixOptions:
    """How drafts are made from occurrences, by the names of vLLM and SuffixDecoding (2411.04975).

    ``min_match`` to ``max_match`` tokens match; a draft has at most ``factor`` times as many tokens as match, plus
    ``offset``; a token is drafted if its probability by the counts, given the sequence, is at least ``min_prob``.
    ``branches`` lets drafts be trees. With ``max_depth`` (None: no limit) a draft and the matching tokens that its
    length is of are at most so many together, as in a suffix tree of that depth.
    """

    min_match: int = 1
    max_match: int = 64
    factor: float = 2.0
    offset: float = 0.0
    min_prob: float = 0.1
    branches: bool = False
    max_depth: int | None = None

    def most_tokens(self, shortest: int, longest: int) -> int:
        """Tokens that are drafted at most from occurrences of which ``shortest`` to ``longest`` tokens may count."""
        sizes = [longest] if self.max_depth is None else range(max(shortest, self.min_match), longest + 1)
        depth = MAX_DRAFT + longest if self.max_depth is None else self.max_depth
        return max(min(int(self.factor * size + self.offset + 1e-9), depth - size) for size in sizes)


class TokenIndex(ABC):
    """Token sequences one after another, the last of which may go on; each ends by itself."""

    @abstractmethod
    def append(self, tokens: Sequence[int]) -> None:
        """Let the last sequence go on with ``tokens``."""

    @abstractmethod
    def end_sequence(self) -> None:
        """End the last sequence: nothing that follows belongs to it."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything."""

    @abstractmethod
    def keep(self, limit: int, sequences: int | None = None) -> None:
        """Forget the oldest sequences that have ended, until at most ``limit`` tokens are left, and of those that have
        ended at most ``sequences`` (None: any number).
        """

    @property
    @abstractmethod
    def size(self) -> int:
        """Tokens, and one for each sequence that has ended."""

    @abstractmethod
    def find(
        self, context: Sequence[int], *, min_match: int, max_match: int, limit: int, skip_end: bool = False
    ) -> list[Occurrence]:
        """The latest occurrences of the last tokens of ``context``, at most ``limit``, the latest first.

        ``skip_end`` leaves out the end of the index, which nothing follows.
        """


@final
class PlainTokenIndex(TokenIndex):
    """A list, searched from its end."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._ends: list[int] = []  # of ended sequences, behind their separators

    def append(self, tokens: Sequence[int]) -> None:
        """See TokenIndex."""
        self.tokens.extend(tokens)

    def end_sequence(self) -> None:
        """See TokenIndex."""
        if self.goes_on:
            self.tokens.append(SEPARATOR)
            self._ends.append(len(self.tokens))

    def clear(self) -> None:
        """See TokenIndex."""
        self.tokens.clear()
        self._ends.clear()

    def keep(self, limit: int, sequences: int | None = None) -> None:
        """See TokenIndex."""
        first, most = 0, len(self._ends) if sequences is None else sequences
        while self._ends and (len(self.tokens) - first > limit or len(self._ends) > most):
            first = self._ends.pop(0)
        del self.tokens[:first]
        self._ends = [end - first for end in self._ends]

    @property
    def size(self) -> int:
        """See TokenIndex."""
        return len(self.tokens)

    @property
    def goes_on(self) -> bool:
        """Whether the last sequence has not ended."""
        return bool(self.tokens) and self.tokens[-1] != SEPARATOR

    def find(
        self, context: Sequence[int], *, min_match: int, max_match: int, limit: int, skip_end: bool = False
    ) -> list[Occurrence]:
        """See TokenIndex."""
        for least in (max(min_match, LONG), min_match):
            found: list[Occurrence] = []
            if least > min(len(context), max_match):
                continue
            for position in range(len(self.tokens) - 1 - skip_end, -1, -1):
                length = self._matched(context, position, max_match)
                if length >= least:
                    found.append(Occurrence(position=position, length=length))
                if len(found) == limit:
                    break
            if found:
                return found
        return []

    def following(self, occurrence: Occurrence, number: int) -> int:
        """A token after an occurrence; a copy that reaches the end of a sequence that goes on starts over."""
        start = occurrence.position + 1
        if start + number < len(self.tokens):
            return self.tokens[start + number]
        period = len(self.tokens) - start
        return self.tokens[start + number % period] if period > 0 and self.goes_on else SEPARATOR

    def _matched(self, context: Sequence[int], position: int, max_match: int) -> int:
        most, length = min(len(context), max_match, position + 1), 0
        while length < most and self.tokens[position - length] == context[-1 - length] != SEPARATOR:
            length += 1
        return length


def draft_from_plain(
    own: PlainTokenIndex, store: PlainTokenIndex | None, *, most: int, options: SuffixOptions
) -> HostDraft:
    """The draft of at most ``most`` tokens that promises more: from ``own``, whose last sequence it continues, or from
    ``store``.
    """
    context = own.tokens[-options.max_match :]
    best = _best_draft(own, context, True, most, options)
    if store is not None:
        other = _best_draft(store, context, False, most, options)
        if other.score > best.score + 1e-9:
            return other
    return best


def _best_draft(
    index: PlainTokenIndex, context: Sequence[int], own: bool, most: int, options: SuffixOptions
) -> HostDraft:
    """Of all lengths of match the one with the highest score; of equal scores the longest match."""
    found = index.find(
        context, min_match=options.min_match, max_match=options.max_match, limit=MAX_OCCURRENCES, skip_end=own
    )
    best = NO_TOKENS
    lengths = sorted({one.length for one in found}, reverse=True)
    for threshold, shorter in pairwise((*lengths, 0)):
        matching = [one for one in found if one.length >= threshold]
        room = min(most, options.most_tokens(shorter + 1, threshold))
        draft = likeliest(index.following, matching, match=threshold, most=room, options=options)
        if draft.score > best.score + 1e-9:
            best = draft
    return best


def likeliest(
    following: Callable[[Place, int], int],
    places: Sequence[Place],
    *,
    match: int,
    most: int,
    options: SuffixOptions,
) -> HostDraft:
    """The likeliest continuations of occurrences at ``places``, best first, of which ``match`` tokens match.

    ``following`` gives the i-th token after a place.
    """
    most = min(most, MAX_DRAFT, int(options.factor * match + options.offset + 1e-9))
    tokens: list[int] = []
    parents: list[int] = []
    probs: list[float] = []
    opened: list[tuple[float, int, int, int, list[Place]]] = []  # probability, token, parent, depth, places

    def expand(parent: int, depth: int, prob: float, members: Sequence[Place]) -> None:
        groups: dict[int, list[Place]] = {}
        for one in members:
            token = following(one, depth)
            if token != SEPARATOR:
                groups.setdefault(token, []).append(one)
        for token, group in groups.items():
            opened.append((prob * len(group) / len(members), token, parent, depth, group))

    if most > 0:
        expand(-1, 0, 1.0, places)
    while len(tokens) < most and opened:
        best = max(range(len(opened)), key=lambda at: (round(opened[at][0], 11), -at))
        prob, token, parent, depth, members = opened[best]
        if prob < options.min_prob:
            break
        if options.branches:
            del opened[best]
        else:
            opened.clear()
        tokens.append(token)
        parents.append(parent)
        probs.append(prob)
        expand(len(tokens) - 1, depth + 1, prob, members)
    return HostDraft(tokens, parents if options.branches else None, match, probs)
