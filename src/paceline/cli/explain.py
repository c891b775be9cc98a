"""``--explain``: how much was drafted when, and why, as text and a table."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from paceline.api import Result
from paceline.cli.stats import Totals, describe_stage
from paceline.engine.costs import DepthCost

MOST_LINES = 12  # changes that are listed of an output


def explain(totals: Totals, results: Sequence[Result] = ()) -> Group:
    """How long drafts were, over all outputs and in each of ``results``, and what the lengths were chosen by."""
    parts: list[RenderableType] = [Text(_lengths(totals.lengths, totals.explored))]
    for number, result in enumerate(results, start=1):
        if len(results) > 1:
            parts.append(Text(f"output {number} of {len(results)}:"))
        parts += [Text(line, style="dim") for line in _changes(result.stats.draft_lengths.changes)]
    parts += [Text(f"stage {describe_stage(stage)}") for stage in totals.stages]
    if totals.costs:
        parts.append(_cost_table(totals.costs))
    return Group(*parts)


def _lengths(lengths: Mapping[int, int], explored: int) -> str:
    total = sum(lengths.values())
    if not total:
        return "no steps"
    by_length = ", ".join(
        f"{count} with {f'up to {depth} draft tokens' if depth else 'no draft'}"
        for depth, count in sorted(lengths.items())
    )
    return f"{total} steps: {by_length}; {explored / total:.0%} of them to find out what other lengths give"


def _changes(changes: Sequence[tuple[int, int]]) -> list[str]:
    found = [f"  after {tokens} tokens: {f'{depth} draft tokens' if depth else 'off'}" for tokens, depth in changes]
    left = len(found) - MOST_LINES
    return found if left <= 0 else [*found[:MOST_LINES], f"  and {left} changes more"]


def _cost_table(costs: Sequence[DepthCost]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("draft tokens", "step", "pays from", "expected", "gain", "measured"):
        table.add_column(title, justify="right")
    for one in costs:
        table.add_row(
            str(one.depth),
            f"{1000 * one.seconds:.2f} ms",
            f"{one.break_even:.2f}",
            f"{one.expected:.2f} tokens",
            f"{one.expected / one.break_even:.2f}x",
            f"{one.times_measured} times" if one.times_measured else "assumed",
        )
    return table
