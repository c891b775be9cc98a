"""``python -m tests.fuzz``: thousands of fresh batches, and how much of what was asked for was refused.

Exits 1 where a result is wrong, where an option that everybody uses was refused, or a fifth of all rows.
"""

import argparse
import logging
import secrets
import sys
import time
import traceback

from hypothesis import HealthCheck, given, seed, settings
from hypothesis.errors import HypothesisException
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from paceline.api.results import Source
from tests.fuzz.cases import ALWAYS, COMMON, OPTIONS, cases
from tests.fuzz.serve import Tally, everything_is_shared_and_measured_often, serve


def main() -> int:
    """Exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--examples", type=int, default=2000, help="batches of two to four rows (2000)")
    parser.add_argument("--seed", type=int, default=None, help="of what is made up (a fresh one)")
    asked = parser.parse_args()
    number = secrets.randbits(32) if asked.seed is None else asked.seed
    console = Console(width=100)
    logging.getLogger("paceline").setLevel(logging.ERROR)  # whether drafting pays is of no interest here
    console.print(f"seed {number}")
    tally, begin = Tally(), time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    wrong = False
    with Progress(*columns, console=console) as progress, everything_is_shared_and_measured_often():
        task = progress.add_task("batches", total=asked.examples)

        @seed(number)
        @settings(
            max_examples=asked.examples,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases())
        def check(case):
            tally.seen["batches"] += 1
            serve(case, tally)
            progress.advance(task)

        try:
            check()
        except (AssertionError, HypothesisException, ArithmeticError, LookupError, RuntimeError, ValueError):
            wrong = True
            traceback.print_exc()
    _print(console, tally)
    seen = tally.seen
    console.print(
        f"{seen['batches']:,} batches of {tally.asked['rows']:,} rows, {seen['results']:,} outputs checked, "
        f"{tally.refused['rows']:,} rows refused ({tally.share:.1%}), {time.monotonic() - begin:.0f} s, seed {number}"
    )
    if wrong:
        console.print("[red]a result is wrong: see above")
    for name in tally.broken:
        console.print(f"[red]refused: {name}")
    return int(wrong or bool(tally.broken))


def _print(console: Console, tally: Tally) -> None:
    table = Table("option", "may be refused", title="What was asked for, and what was refused")
    for title in ("rows", "refused", "share"):
        table.add_column(title, justify="right")
    for name in (*ALWAYS, *OPTIONS):
        asked, refused = tally.asked[name], tally.refused[name]
        table.add_row(
            name, "no" if name in COMMON else "yes", f"{asked:,}", f"{refused:,}", f"{refused / max(1, asked):.1%}"
        )
    console.print(table)
    table = Table("drafter", title="What was drafted, and kept")
    for title in ("outputs", "tokens", "of drafts"):
        table.add_column(title, justify="right")
    for name, kept in sorted(tally.kept.items()):
        tokens = sum(kept[source] for source in Source)
        table.add_row(name, f"{kept['outputs']:,}", f"{tokens:,}", f"{kept[Source.DRAFTED] / tokens:.1%}")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
