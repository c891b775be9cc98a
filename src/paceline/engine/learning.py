"""What the rows of a drafted step teach: each of them of itself, and all of them what the step did."""

from collections.abc import Mapping

from paceline.core.step import StepResult
from paceline.engine.costs import StepWork
from paceline.engine.probes import Probes
from paceline.engine.row_state import RowState


def learn_rows(
    result: StepResult,
    rows: Mapping[int, RowState],
    probes: Probes,
    *,
    num_unverified: int,
    levels: bool,
    timed: bool,
    sample: bool,
) -> tuple[StepWork, int]:
    """Let every row that drafted learn (RowState.learn has the options), and ``probes`` judge those that probed.

    Returns what the step did, its drafts having ``num_unverified`` nodes more each, and how many tokens drafters had
    missed before.
    """
    plan = result.plan
    drafted = missed = nodes = num_running = deepest = 0
    for row, tokens in enumerate(result.tokens):
        state = rows.get(row)
        if not tokens or state is None:
            continue
        num_running, nodes = num_running + 1, nodes + 1 + result.num_drafted[row]
        depth = min(plan.depth_of(row), state.room)
        state.left -= len(tokens)
        if depth:
            read = depth if plan.stop is None else min(depth, result.num_drafted[row] + 1)
            deepest = max(deepest, read)
            drafted += read
            nodes += num_unverified
            missed += state.missed
            submitted = state.learn(result, row, depth, levels=levels, timed=timed, sample=sample)
            if submitted is not None and not state.depth:
                probes.judge(state, accepted=result.num_accepted[row], submitted=submitted)
        else:  # plain, or copied beside the others
            state.missed += len(tokens)
            state.wait -= 1
    return StepWork(num_running, nodes, deepest, drafted), missed
