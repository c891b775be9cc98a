"""Probes: drafts of rows for which drafting does not pay, to notice when it does; and the budget that bounds them."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, inf
from typing import final

from paceline.engine.row_state import FIRST_WAIT, RowState
from paceline.engine.search_budget import SearchBudget

PROBE_SHARE = 0.01  # of the time of plain decoding, that probes may take
SAVED_STEPS = 64  # plain steps whose share may be saved up
LONGEST_WAIT = 16  # steps between two probes of a row, if they can be paid


@final
class Probes:
    """Chooses the rows that probe. Probes are paid from a budget of ``PROBE_SHARE`` of plain decoding and of what is
    granted; without ``bounded`` there is no limit. ``search`` is earned in the same steps.
    """

    def __init__(self, *, bounded: bool) -> None:
        self._budget = 0.0 if bounded else inf  # in costs
        self._wanted = 0.0  # the cost of a probe that could not be paid
        self.search = SearchBudget()

    def grant(self, cost: float) -> None:
        """Allow a probe of this cost more."""
        self._budget += max(0.0, cost)

    def earn(self, steps: int, plain: float) -> None:
        """Add the share of ``steps`` steps, a plain one costing ``plain``; no more is saved than probes cost."""
        share = PROBE_SHARE * plain
        limit = max(SAVED_STEPS * share, 2 * self._wanted)  # which grows while it is saved for
        self._budget = max(self._budget, min(self._budget + steps * share, limit))
        self.search.earn(steps, plain)

    def choose(
        self, rows: Mapping[int, RowState], plain: float, cost: Callable[[Sequence[RowState]], float]
    ) -> dict[int, int]:
        """The depth of the probe of every row that is not drafted for and whose turn has come, as the budget allows.

        ``cost`` is what a step costs in which these rows probe, beyond a plain one.
        """
        due = sorted(
            (state.wait, row) for row, state in rows.items() if not state.depth and state.most and state.wait <= 0
        )
        probing: list[RowState] = []
        spent = 0.0
        for _, row in due:
            state = rows[row]
            together = cost([*probing, state])
            if together > self._budget and state.burst == 1:  # a deeper one follows a success, on credit
                self._wanted = together
                saving = ceil((together - self._budget) / (PROBE_SHARE * plain))
                for _, other in due[len(probing) :]:
                    rows[other].wait = saving
                break
            probing.append(state)
            spent, self._wanted = together, 0.0
        self._budget -= spent
        for state in probing:
            state.wait = state.interval
        return {row: rows[row].burst for _, row in due[: len(probing)]}

    def judge(self, state: RowState, *, accepted: int, submitted: int) -> None:
        """After a probe: one that was accepted is followed by a deeper one at once, another by a longer wait."""
        if submitted and accepted:
            state.interval, state.wait = FIRST_WAIT, 0
            state.burst = min(state.most, 2 * submitted) if accepted == submitted else 1
        else:
            state.wait, state.burst = state.interval, 1
            state.interval = min(2 * state.interval, LONGEST_WAIT)
