"""The command ``python -m benchmarks resume``: loads the target, and has the study measured and shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import torch
from rich.table import Table

from benchmarks.resume.cases import Cell
from benchmarks.resume.measure import measure_cells
from benchmarks.resume.table import figures_of, footnotes, tables_of
from benchmarks.study import Study, begin_run, check_native
from paceline.api import embedded_pair
from paceline.bench.raw import RawFile, Record
from paceline.cli.bench_inputs import read_counts
from paceline.cli.console import open_notes
from paceline.cli.models import load_target
from paceline.cli.options import ModelOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(Study):
    """The command's options."""

    title: ClassVar[str] = "Resuming from the exit"

    target: str | None
    exits: str
    batch: str
    context: str
    num_draft_tokens: int
    num_steps: int

    def check(self) -> None:
        """Raise ValueError for counts that mean nothing."""
        self._cells()

    def measure(self, raw: RawFile) -> None:
        """Put into ``raw`` what it lacks."""
        path = self.target or str(embedded_pair()[0])
        target = load_target(
            ModelOptions(
                model=path,
                dtype=self.dtype,
                device="cpu" if not torch.cuda.is_available() else None,
                threads=self.threads,
                revision=None,
                trust_remote_code=False,
            )
        )
        lm = check_native(target, path)
        run = begin_run(raw, models={"target": path}, dtype=target.dtype, choices={"num_steps": self.num_steps})
        with open_notes(quiet=False, log_level=None).status("measuring ...") as status:
            measure_cells(self._cells(), target=lm, raw=raw, run=run, num_steps=self.num_steps, say=status.update)

    def tables(self, records: Sequence[Record]) -> list[Table]:
        """What ``records`` say, run by run."""
        return tables_of(records)

    def footnotes(self) -> list[str]:
        """What the figures are."""
        return footnotes()

    def draw(self, records: Sequence[Record], *, title: str) -> str:
        """Gain over the exit's layer."""
        from benchmarks.resume.plot import draw  # needs the optional matplotlib

        return draw(figures_of(records), title=title)

    def _cells(self) -> list[Cell]:
        if self.num_draft_tokens < 1:
            raise ValueError(f"--k {self.num_draft_tokens}: give at least 1")
        counts = (
            read_counts(self.exits, option="--exit"),
            read_counts(self.batch, option="--batch"),
            read_counts(self.context, option="--context"),
        )
        return [
            Cell(exit_layer=layer, num_rows=rows, context=context, num_draft_tokens=self.num_draft_tokens)
            for context, rows, layer in product(*reversed(counts))
        ]
