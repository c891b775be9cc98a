"""Drafts the rest of the source, where the output copies it: input-guided aggressive decoding (2106.04970).

For editing and correction, where most of the output stands in the prompt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from paceline.core.context import describe, reads_source, token_source
from paceline.core.host_draft import HostDraft
from paceline.core.request import Request
from paceline.core.token_index import MAX_OCCURRENCES, TokenIndex
from paceline.drafters.base import DrafterContext
from paceline.drafters.host import HostDrafter
from paceline.drafters.token_store import new_index

NEAR = 32  # tokens of the source around the last copy, in which one equal token is enough to go on


@final
@dataclass(slots=True)
class _Copying:
    """Where a request copies from."""

    source: Sequence[int]
    index: TokenIndex
    known: frozenset[tuple[int, ...]]  # all runs of min_match tokens in it: most steps need look no further
    seen: int  # tokens of the sequence that were looked at
    at: int = -1  # the next token of the source to be copied; -1: it was not found yet
    run: int = 0  # tokens that were copied without a break, up to there
    lost: int = -1  # where the output left the source, until it is found again; -1: it did not


@final
class CopyDrafter(HostDrafter):
    """Copies the source, as far as it goes, from where the output's last tokens stand in it.

    The source is the prompt, or what the encoder of an encoder-decoder reads, or ``source`` (None) for every request.
    An encoder's source is copied from its first token on. While the output follows it, all that is left of
    it is the draft. Where the output departs from it, the draft goes on after the nearest equal token, at most 32
    tokens away, or, while there is none, one token further on, as after a replaced word. Elsewhere it begins again
    where the output's last ``min_match`` (3) to ``max_match`` (32) tokens stand, the longest match first, and of equal
    ones the first behind the last copy. Raises ValueError for options out of range, and for a target whose encoder
    reads no tokens, unless there is a ``source``.
    """

    origins = ("copy",)
    copies = True

    def __init__(self, *, min_match: int = 3, max_match: int = 32, source: Sequence[int] | None = None) -> None:
        if not 1 <= min_match <= max_match <= 256:
            raise ValueError(f"min_match={min_match}, max_match={max_match}: need 1 <= min_match <= max_match <= 256")
        self.min_match, self.max_match, self.source = min_match, max_match, source
        self._rows: dict[int, _Copying] = {}
        self._input: str | None = None  # of the context: what is copied in the place of the prompt

    def start(self, context: DrafterContext) -> None:
        """Nothing is copied yet. Raises ValueError for a target whose requests have no tokens to copy."""
        reads = context.target.context_inputs
        self._input = token_source(reads)
        if self.source is None and self._input is None and reads_source(reads):
            raise ValueError(
                f"the drafter 'copy' and a target that reads {describe(reads)}: there are no tokens to copy; leave it "
                "out, or give the tokens, as CopyDrafter(source=...)"
            )
        self._rows.clear()

    def begin(self, row: int, request: Request) -> None:
        """Index the source, and look for the end of the prompt within it: the output may begin with a copy."""
        index = self._rows[row].index if row in self._rows else new_index()
        source = tuple(request.source(self._input) if self.source is None else self.source)
        index.clear()
        index.append(source)
        known = frozenset(zip(*(source[first:] for first in range(self.min_match)), strict=False))
        copying = self._rows[row] = _Copying(source=source, index=index, known=known, seen=len(request.tokens))
        if self.source is None and self._input is not None:
            copying.at, copying.run = 0, 1  # the start of the output is that of the source
        self._find(copying, request.tokens)

    def propose(self, sequences: Mapping[int, Sequence[int]], num_draft_tokens: int) -> Mapping[int, HostDraft]:
        """The source from where the output stands in it."""
        found: dict[int, HostDraft] = {}
        for row, tokens in sequences.items():
            copying = self._rows[row]
            self._follow(copying, tokens)
            if 0 <= copying.at < len(copying.source):
                draft = copying.source[copying.at : copying.at + num_draft_tokens]
                found[row] = HostDraft(draft, match=copying.run)
        return found

    def _follow(self, copying: _Copying, tokens: Sequence[int]) -> None:
        """Take the new tokens of a sequence into account."""
        source = copying.source
        for end in range(copying.seen, len(tokens)):
            at, token = copying.at, tokens[end]
            if 0 <= at < len(source) and source[at] == token:
                copying.at, copying.run = at + 1, copying.run + 1
                if copying.run >= self.min_match:
                    copying.lost = -1
            elif at >= 0:
                if copying.lost < 0:
                    copying.lost = at
                self._go_on(copying, token)
            if copying.run < self.min_match:
                self._find(copying, tokens[max(0, end + 1 - self.max_match) : end + 1])
        copying.seen = len(tokens)

    def _go_on(self, copying: _Copying, token: int) -> None:
        """Copy from behind the nearest ``token``, or one token further on."""
        first = copying.lost
        near = copying.source[first : first + NEAR]
        places = [first + index for index, other in enumerate(near) if other == token]
        if places:
            copying.at, copying.run = min(places, key=lambda place: abs(place - copying.at)) + 1, 1
        else:
            copying.at, copying.run = min(copying.at + 1, first + NEAR), 0

    def _find(self, copying: _Copying, tokens: Sequence[int]) -> None:
        """Begin where the last tokens stand in the source, if they do and more of them than the copy has."""
        if tuple(tokens[-self.min_match :]) not in copying.known:
            return
        occurrences = copying.index.find(
            tokens[-self.max_match :],
            min_match=self.min_match,
            max_match=self.max_match,
            limit=MAX_OCCURRENCES,
            skip_end=True,
        )
        places = [one for one in occurrences if one.length > copying.run]
        if places:
            expected = max(copying.at, 0)
            best = min(places, key=lambda one: (-one.length, (one.position + 1 - expected) % len(copying.source)))
            copying.at, copying.run, copying.lost = best.position + 1, best.length, -1
