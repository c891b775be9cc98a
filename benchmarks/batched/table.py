"""What the records of batches that advance in three ways say, as figures and tables. Measures nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.batched.cases import AGAIN, LOCK_STEP, PER_ROW, REALIGNED, Cell
from paceline.bench.raw import BATCHED, RUN, Record
from paceline.bench.statistics import Estimate, estimate, paired_ratios
from paceline.core.stats import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedFigures:
    """One cell. Times are of whole batches, over those of rows that advance alone."""

    cell: Cell
    tokens_per_second: Estimate  # of the batch, per row
    tokens_per_step: float  # of a row, accepted ones and the next
    locked_tokens_per_step: float
    model_tokens_per_step: float  # what ``locked_model`` says of the above
    locked: Estimate
    realigned: Estimate | None
    aligning: float | None  # share of the realigned way's time
    same: dict[str, float]  # share of texts that are those of rows that advance alone
    control: Estimate
    void: bool


def acceptance(summary: Summary) -> float:
    """The probability that a drafted token is accepted if all before it were: kept over tried."""
    tried = [min(known) for known in zip(summary.drafted, [summary.steps, *summary.accepted], strict=False)]
    return sum(summary.accepted) / sum(tried) if sum(tried) else 0.0


def locked_model(alpha: float, *, num_rows: int, num_draft_tokens: int) -> float:
    """Tokens a step in lock-step, were every token of every row accepted by itself with probability ``alpha``.

    A draft survives a place where all rows accept theirs, with probability alpha^B.
    """
    return sum(alpha ** (num_rows * depth) for depth in range(num_draft_tokens + 1))


def figures_of(records: Sequence[Record]) -> list[BatchedFigures]:
    """Of every cell of every run; where one was measured again, the newest."""
    found = {(record["run"], Cell(**record["cell"])): record for record in records if record["kind"] == BATCHED}
    return [_figures(record) for record in found.values()]


def tables_of(records: Sequence[Record]) -> list[Table]:
    """A table for every run, runtime and draft length, a line for every number of rows."""
    found: list[Table] = []
    for run in [record for record in records if record["kind"] == RUN]:
        lines = figures_of([record for record in records if record["run"] == run["run"]])
        for kind in dict.fromkeys(map(_kind, lines)):
            found.append(_table(run, [line for line in lines if _kind(line) == kind]))
    return found


def footnotes() -> list[str]:
    """What the figures are."""
    return [
        "lock-step, realigned: time of a whole batch over that of rows that advance alone, above 1 where it costs; "
        "median [95 % interval] of paired ratios",
        "tokens a step: of a row, accepted ones and the target's own; alone, in lock-step, and what the model says of "
        "lock-step: the sum of alpha^(B i), i = 0 to k, with the alpha of rows that advance alone",
        "moving: share of the realigned batch's time that the moves of keys and values take",
        "same: texts in lock-step and realigned that are those of rows that advance alone",
        "control: rows that advance alone, against themselves; (void) where they differed by over 3 %",
    ]


def _figures(record: Record) -> BatchedFigures:
    cell, ways = Cell(**record["cell"]), record["ways"]
    alone = ways[PER_ROW]["seconds"]
    summaries = {name: Summary(**way["summary"]) for name, way in ways.items()}
    own, num_texts = summaries[PER_ROW], len(alone) * cell.num_rows
    per_batch = own.emitted / len(alone)
    alpha, padded = acceptance(own), ways.get(REALIGNED)
    return BatchedFigures(
        cell=cell,
        tokens_per_second=estimate([per_batch / seconds for seconds in alone]),
        tokens_per_step=own.mean_acceptance_length,
        locked_tokens_per_step=summaries[LOCK_STEP].mean_acceptance_length,
        model_tokens_per_step=locked_model(alpha, num_rows=cell.num_rows, num_draft_tokens=cell.num_draft_tokens),
        locked=estimate(paired_ratios(ways[LOCK_STEP]["seconds"], alone)),
        realigned=None if padded is None else estimate(paired_ratios(padded["seconds"], alone)),
        aligning=None if padded is None else _share(padded),
        same={name: way["same"] / num_texts for name, way in ways.items() if name in (LOCK_STEP, REALIGNED)},
        control=estimate(paired_ratios(alone, ways[AGAIN]["seconds"])),
        void=record["void"],
    )


def _kind(line: BatchedFigures) -> tuple[str, int]:
    return line.cell.runtime, line.cell.num_draft_tokens


def _share(way: dict[str, Any]) -> float:
    return median(part / whole for part, whole in zip(way["aligning"], way["seconds"], strict=True))


def _table(run: Record, lines: Sequence[BatchedFigures]) -> Table:
    conditions = run["conditions"]
    named = f"{conditions['target']['name']}, drafts by {conditions['draft']['name']}, {conditions['dtype']}"
    runtime, count = _kind(lines[0])
    title = f"{named}, {runtime}, k = {count}, threads: {conditions['num_threads']}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    names = ("rows", "tokens/s", "tokens a step", "lock-step", "realigned", "moving", "same", "control")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        steps = (line.tokens_per_step, line.locked_tokens_per_step, line.model_tokens_per_step)
        table.add_row(
            str(line.cell.num_rows),
            f"{line.tokens_per_second.value:.0f}",
            " ".join(f"{value:.2f}" for value in steps),
            _interval(line.locked),
            "-" if line.realigned is None else _interval(line.realigned),
            "-" if line.aligning is None else f"{line.aligning:.1%}",
            " ".join(f"{share:.0%}" for share in line.same.values()),
            f"{line.control.value:.3f}" + (" (void)" if line.void else ""),
        )
    return table


def _interval(found: Estimate) -> str:
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"
