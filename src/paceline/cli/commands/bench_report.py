"""``paceline bench report``, and the report at the end of ``paceline bench``."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console

from paceline.cli.command import EXIT_OK, Command
from paceline.cli.options import OUTPUT, POSITIONAL

if TYPE_CHECKING:
    from paceline.bench.raw import Record

Html = Annotated[bool, Parameter(negative="--no-html", help="Write an HTML page beside the raw figures.", group=OUTPUT)]


@dataclass(frozen=True, slots=True)
class BenchReport(Command):
    """Make the table, CSV and HTML page of raw figures again."""

    raw: Annotated[Path, POSITIONAL]
    """A file that paceline bench wrote."""
    _: KW_ONLY
    html: Html = True

    def run(self) -> int:
        """Write CSV and HTML, and print the table."""
        from paceline.bench.raw import read_records

        return write_and_print(self.raw, read_records(self.raw), html=self.html)


def write_and_print(path: Path, records: "list[Record]", *, html: bool) -> int:
    """Write the reports of ``records``, which ``path`` holds, and print their tables; the exit code.

    Raises ValueError where there is no figure.
    """
    from paceline.bench.figures import acceptances_of, durations_of, figures_of
    from paceline.bench.head_to_head import head_to_head_figures, undecided
    from paceline.bench.missing_peers import failures_of, missing_of
    from paceline.bench.output import print_tables, write_reports

    console = Console(highlight=False)
    figures = figures_of(records)
    if not figures and not acceptances_of(records):
        raise ValueError(f"{path}: no cells in it: there is nothing to report yet")
    written = write_reports(path, html=html)
    print_tables(records, console)
    comparisons = head_to_head_figures(records)
    for lines, what in (
        (figures, "cells are void: plain decoding"),
        (comparisons, "pairs are void: the other side"),
    ):
        void = sum(line.void for line in lines)
        if not void:
            continue
        note = f"{void} of {len(lines)} {what} differed from itself, the machine was not quiet."
        console.print(f"{note} With more --attempts the same command times them again.", soft_wrap=True)
    for line in (*missing_of(records), *failures_of(records)):
        console.print(str(line), soft_wrap=True, markup=False)
    for group in undecided(records):
        note = f"No drafted pair meets best against best at {group}: no sound cell of one of the sides to choose from."
        console.print(note, soft_wrap=True)
    if figures:
        spent = durations_of(records)
        started = f"and {spent.starting / 60:.1f} of loading and starting what was timed"
        console.print(f"{spent.timing / 60:.1f} minutes of timing, all attempts, {started}", soft_wrap=True)
    console.print(f"raw figures: {path}; written: {', '.join(map(str, written))}", soft_wrap=True, markup=False)
    return EXIT_OK
