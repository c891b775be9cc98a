"""What drafters may take that search, while decoding, for a better way to draft."""

from typing import final

SEARCH_SHARE = 0.02  # of the time of plain decoding


@final
class SearchBudget:
    """Lets a drafter search once what that is expected to cost was saved, ``SEARCH_SHARE`` of plain steps.

    What it cost more or less is corrected later, so that it takes no greater share in the long run. All costs are as
    StepCosts has them.
    """

    def __init__(self) -> None:
        self._owed: float | None = None  # until the next search; None: nobody searches
        self._expected = 0.0

    def open(self, cost: float) -> None:
        """A drafter may search, and is expected to take this for it at first."""
        if self._owed is None:
            self._owed = self._expected = cost

    def take(self) -> bool:
        """Whether it may search now. If so, the next time is paid for anew."""
        if self._owed != 0.0:
            return False
        self._owed = self._expected
        return True

    def earn(self, steps: int, plain: float) -> None:
        """Pay by ``steps`` steps, a plain one costing ``plain``; nothing is saved beyond the next search."""
        if self._owed:
            self._owed = max(0.0, self._owed - SEARCH_SHARE * steps * plain)

    def spend(self, cost: float) -> None:
        """It took this for the search that it might begin; nothing if there was none."""
        assert self._owed is not None
        self._owed = max(0.0, self._owed + cost - self._expected)
