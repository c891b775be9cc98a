"""The command ``paceline experiment resume``: measures, prints a table and draws a picture where that is possible."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import torch
from rich.console import Console

from paceline.api import embedded_pair
from paceline.bench.machine import describe, hash_source
from paceline.bench.raw import RUN, RawFile, Record, fingerprint, hash_model
from paceline.cli import EXIT_OK
from paceline.cli.bench_inputs import read_counts
from paceline.cli.console import open_notes
from paceline.cli.models import load_target
from paceline.cli.options import ModelOptions
from paceline.experiments.resume.cases import Cell
from paceline.experiments.resume.measure import measure_cells
from paceline.experiments.resume.table import figures_of, footnotes, tables_of
from paceline.models.decoder import DecoderLM
from paceline.models.loading import name_of

WIDTH = 110  # of the tables where there is no terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """The command's options; ``run`` returns the exit code."""

    output: Path
    target: str | None
    exits: str
    batch: str
    context: str
    num_draft_tokens: int
    num_steps: int
    dtype: str | None
    threads: int | None
    report: bool

    def run(self) -> int:
        """Measure what the file lacks, unless only a report is asked for, and show what it holds."""
        cells = self._cells()
        raw = RawFile(self.output)
        if not self.report:
            self._measure(cells, raw)
        tables = tables_of(raw.records)
        if not tables:
            raise ValueError(f"{self.output} holds no figures of this study; measure some first, without --report")
        console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
        for table in tables:
            console.print(table)
            console.print()
        for line in footnotes():
            console.print(line, soft_wrap=True, markup=False)
        console.print(f"raw figures: {self.output}; drawn: {_draw(raw.records, self.output)}", soft_wrap=True)
        return EXIT_OK

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

    def _measure(self, cells: Sequence[Cell], raw: RawFile) -> None:
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
        if not isinstance(target.lm, DecoderLM):
            raise ValueError(f"--target {path}: transformers' own code runs all layers; give a natively known model")
        conditions: Record = {
            "machine": describe().identity(),
            "source": hash_source(),
            "num_threads": torch.get_num_threads(),
            "dtype": name_of(target.dtype),
            "target": {"name": Path(path).name, "hash": hash_model(Path(path)) if Path(path).is_dir() else path},
            "num_steps": self.num_steps,
        }
        run = fingerprint(conditions)
        if not any(record["kind"] == RUN and record["run"] == run for record in raw.records):
            date = datetime.now(UTC).isoformat(timespec="seconds")
            raw.append({"kind": RUN, "run": run, "conditions": conditions, "notes": {"date": date}})
        notes = open_notes(quiet=False, log_level=None)
        with notes.status("measuring ...") as status:
            measure_cells(
                cells,
                target=target.lm,
                raw=raw,
                run=run,
                num_steps=self.num_steps,
                say=status.update,
            )


def _draw(records: Sequence[Record], output: Path) -> str:
    """A drawing of the newest run beside the figures, where matplotlib is installed; what to say of it."""
    if find_spec("matplotlib") is None:
        return "nothing, for matplotlib is missing (pip install 'paceline[bench]')"
    from paceline.experiments.resume.plot import draw  # needs the optional matplotlib

    newest = [record for record in records if record["kind"] == RUN][-1]
    figures = figures_of([record for record in records if record["run"] == newest["run"]])
    conditions = newest["conditions"]
    title = f"Resuming from the exit: {conditions['target']['name']}, {conditions['dtype']}"
    file = output.with_suffix(".svg")
    file.write_text(draw(figures, title=title), encoding="utf-8")
    return str(file)
