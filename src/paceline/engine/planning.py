"""The plan of a step, from the depths that were chosen."""

from collections.abc import Collection, Mapping

from paceline.core.early_stop import LEVELS, StopRule
from paceline.core.step import StepPlan
from paceline.core.tree import NoDraft
from paceline.engine.row_state import RowState


def make_plan(
    rows: Mapping[int, RowState],
    chosen: Mapping[int, int],
    *,
    size: int,
    ends_early: bool,
    explored: Collection[int],
) -> StepPlan:
    """Drafts as deep as ``chosen`` in the running ``rows``, of which there are ``size`` places.

    With ``ends_early`` chains end where the next token does not pay, but for those of ``explored``. Where all steps
    that are ``explored`` are plain, that is to measure them.
    """
    deepest, stop = max(chosen.values()), None
    alike = min(chosen.values()) == deepest
    if ends_early and deepest:
        acceptance, least = [(1.0,) * LEVELS] * size, [0.0] * size
        for row, state in rows.items():
            acceptance[row] = state.pool.confidence.acceptance
            least[row] = 0.0 if row in explored else state.least
        stop = StopRule(tuple(acceptance), tuple(least))
    return StepPlan(
        deepest,
        None if alike else tuple(chosen.get(row, 0) for row in range(size)),
        off=NoDraft.MEASURED if explored and not deepest else NoDraft.SLOWER,
        explored=tuple(explored),
        stop=stop,
        searches=False,
    )
