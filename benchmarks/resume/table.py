"""What the records of resumed and whole verification say, as figures and tables. Measures nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.resume.cases import AGAIN, PLAIN, RESUMED, WHOLE, Cell
from paceline.bench.raw import RESUME, RUN, Record
from paceline.bench.statistics import Estimate, estimate, paired_ratios


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeFigures:
    """One cell: times of a step in seconds, and the time of a whole verification's step over that of a resumed one."""

    cell: Cell
    step: Estimate  # resumed
    plain: Estimate
    gain: Estimate
    control: Estimate
    avoided: float  # share of the verification's arithmetic in layers
    void: bool


def figures_of(records: Sequence[Record]) -> list[ResumeFigures]:
    """Of every cell, in the order in which they were measured."""
    return [_figures(record) for record in records if record["kind"] == RESUME]


def tables_of(records: Sequence[Record]) -> list[Table]:
    """A table for every run, a line for every cell."""
    found: list[Table] = []
    for run in [record for record in records if record["kind"] == RUN]:
        lines = figures_of([record for record in records if record["run"] == run["run"]])
        if lines:
            found.append(_table(run, lines))
    return found


def footnotes() -> list[str]:
    """What the figures are."""
    return [
        "gain: time of a step that verifies from the embeddings over that of one that resumes, above 1 where resuming "
        "pays; median [95 % interval] of paired ratios",
        "avoided: share of the verification's arithmetic in layers that resuming leaves out; a step bound by reading "
        "weights gains nothing from it",
        "control: resuming against itself; (void) where it differed by over 3 %",
    ]


def _figures(record: Record) -> ResumeFigures:
    cell, seconds = Cell(**record["cell"]), record["seconds"]
    return ResumeFigures(
        cell=cell,
        step=estimate(seconds[RESUMED]),
        plain=estimate(seconds[PLAIN]),
        gain=estimate(paired_ratios(seconds[WHOLE], seconds[RESUMED])),
        control=estimate(paired_ratios(seconds[RESUMED], seconds[AGAIN])),
        avoided=cell.avoided(record["num_layers"]),
        void=record["void"],
    )


def _table(run: Record, lines: Sequence[ResumeFigures]) -> Table:
    conditions = run["conditions"]
    title = f"{conditions['target']['name']}, {conditions['dtype']}, threads: {conditions['num_threads']}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("exit", "rows", "context", "k", "plain", "resumed", "avoided", "gain", "control"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        cell = line.cell
        counts = (cell.exit_layer, cell.num_rows, cell.context, cell.num_draft_tokens)
        table.add_row(
            *map(str, counts),
            f"{1000 * line.plain.value:.2f} ms",
            f"{1000 * line.step.value:.2f} ms",
            f"{line.avoided:.0%}",
            f"{line.gain.value:.3f} [{line.gain.low:.3f}, {line.gain.high:.3f}]",
            f"{line.control.value:.3f}" + (" (void)" if line.void else ""),
        )
    return table
