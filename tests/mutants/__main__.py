"""Prints, for each mutant, where it was planted and which ordinary test killed it; exits 1 if any survives."""

import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.mutants import MUTANTS
from tests.mutants.apply import file_of, kill, line_of


def main() -> int:
    table = Table("mutant", "planted at", "killed by", title="Mutants")
    survivors = 0
    for mutant in MUTANTS:
        with tempfile.TemporaryDirectory() as folder:
            test = kill(mutant, Path(folder))
        survivors += test is None
        table.add_row(mutant.name, f"{file_of(mutant)}:{line_of(mutant)}", test or "SURVIVED")
        print(f"{mutant.name}: {test or 'SURVIVED'}", file=sys.stderr, flush=True)
    Console(width=160).print(table)
    return min(survivors, 1)


if __name__ == "__main__":
    sys.exit(main())
