"""Several drafters that copy, as one: a plan chooses among all their drafts."""

from collections.abc import Mapping, Sequence
from typing import final

from paceline.core.host_draft import HostDraft
from paceline.core.request import Request
from paceline.drafters.base import DrafterContext
from paceline.drafters.host import HostDrafter


@final
class JoinedCopies(HostDrafter):
    """``drafters``, whose drafts are all on offer; where no plan chooses, the one that promises most is taken.

    Raises ValueError for fewer than two, for one that does not copy, and for trees beside chains.
    """

    copies = True

    def __init__(self, drafters: Sequence[HostDrafter]) -> None:
        if len(drafters) < 2:
            raise ValueError(f"{len(drafters)} drafters: give at least 2, or the drafter itself")
        if not all(one.copies for one in drafters):
            raise ValueError("a drafter that does not copy among those that do: give it beside them")
        if any(one.branches for one in drafters):
            raise ValueError("drafts that branch (tree=true) beside other copies: leave the option out")
        self.drafters = tuple(drafters)
        self.origins = tuple(origin for one in drafters for origin in one.origins)
        counts = [len(one.origins) for one in drafters]
        self._first_origin = [sum(counts[:at]) for at in range(len(counts))]

    def start(self, context: DrafterContext) -> None:
        """Start all of them."""
        for one in self.drafters:
            one.start(context)

    def begin(self, row: int, request: Request) -> None:
        """To all of them."""
        for one in self.drafters:
            one.begin(row, request)

    def end(self, row: int, sequence: Sequence[int]) -> None:
        """To all of them."""
        for one in self.drafters:
            one.end(row, sequence)

    def offers(
        self, sequences: Mapping[int, Sequence[int]], num_draft_tokens: int
    ) -> Mapping[int, Sequence[HostDraft]]:
        """The drafts of all of them."""
        found: dict[int, list[HostDraft]] = {}
        for one, first in zip(self.drafters, self._first_origin, strict=True):
            for row, drafts in one.offers(sequences, num_draft_tokens).items():
                named = [draft.named(first + draft.origin) for draft in drafts] if first else drafts
                found.setdefault(row, []).extend(named)
        return found

    def propose(self, sequences: Mapping[int, Sequence[int]], num_draft_tokens: int) -> Mapping[int, HostDraft]:
        """Of each row the draft that promises most."""
        offers = self.offers(sequences, num_draft_tokens)
        return {row: max(drafts, key=_promise) for row, drafts in offers.items() if drafts}


def _promise(draft: HostDraft) -> float:
    """Accepted tokens, by the drafter's own counts and the length of the match."""
    return draft.score * draft.match / (1 + draft.match)
