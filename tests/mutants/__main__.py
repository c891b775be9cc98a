"""Prints, for each mutant, where it was planted and which ordinary test killed it; exits 1 if any survives."""

import argparse
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.mutants import MUTANTS
from tests.mutants.apply import file_of, kill, line_of
from tests.mutants.mutant import Mutant


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="run mutants of files whose path contains this, such as .h")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="mutants tested at a time (default: one a core)"
    )
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if options.only in str(file_of(mutant))]
    if not chosen:
        parser.error(f"no mutant is planted in a file whose path contains {options.only!r}")
    with ThreadPoolExecutor(options.jobs) as pool:
        killed = list(pool.map(_kill, chosen))
    table = Table("mutant", "planted at", "killed by", title="Mutants")
    for mutant, test in zip(chosen, killed, strict=True):
        table.add_row(mutant.name, f"{file_of(mutant)}:{line_of(mutant)}", test or "SURVIVED")
    Console(width=160, markup=False).print(table)  # names of tests have brackets
    return int(None in killed)


def _kill(mutant: Mutant) -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        test = kill(mutant, Path(folder))
    print(f"{mutant.name}: {test or 'SURVIVED'}", file=sys.stderr, flush=True)
    return test


if __name__ == "__main__":
    sys.exit(main())
