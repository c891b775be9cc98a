"""What the studies share: where figures are kept and how they are shown. Measures nothing."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.scaling.measure import begin
from paceline.api import Loaded
from paceline.bench.machine import describe, hash_source
from paceline.bench.raw import RUN, RawFile, Record, hash_model
from paceline.cli import EXIT_OK
from paceline.models.loading import dtype_name
from paceline.models.native.decoder import DecoderLM

WIDTH = 110  # of the tables where there is no terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Study(ABC):
    """Options that every study has; ``run`` returns the exit code."""

    title: ClassVar[str]  # of its drawing

    output: Path
    dtype: str | None
    threads: int | None
    report: bool

    @abstractmethod
    def check(self) -> None:
        """Raise ValueError for options that mean nothing, before anything is read."""

    @abstractmethod
    def measure(self, raw: RawFile) -> None:
        """Put into ``raw`` what it lacks."""

    @abstractmethod
    def tables(self, records: Sequence[Record]) -> list[Table]:
        """What ``records`` say, run by run."""

    @abstractmethod
    def footnotes(self) -> list[str]:
        """What the figures are."""

    @abstractmethod
    def draw(self, records: Sequence[Record], *, title: str) -> str:
        """The SVG drawing of one run's ``records``; matplotlib is there."""

    def run(self) -> int:
        """Measure what the file lacks, unless only a report is asked for, and show what it holds."""
        self.check()
        raw = RawFile(self.output)
        if not self.report:
            self.measure(raw)
        tables = self.tables(raw.records)
        if not tables:
            raise ValueError(f"{self.output} holds no figures of this study; measure some first, without --report")
        console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
        for table in tables:
            console.print(table)
            console.print()
        for line in self.footnotes():
            console.print(line, soft_wrap=True, markup=False)
        console.print(f"raw figures: {self.output}; drawn: {self._drawn(raw.records)}", soft_wrap=True)
        return EXIT_OK

    def _drawn(self, records: Sequence[Record]) -> str:
        """A drawing of the newest run beside the figures, where matplotlib is installed; what to say of it."""
        if find_spec("matplotlib") is None:
            return "nothing, for matplotlib is missing (pip install 'paceline[bench]')"
        newest = [record for record in records if record["kind"] == RUN][-1]
        conditions = newest["conditions"]
        title = f"{self.title}: {conditions['target']['name']}, {conditions['dtype']}"
        file = self.output.with_suffix(".svg")
        own = [record for record in records if record["run"] == newest["run"]]
        file.write_text(self.draw(own, title=title), encoding="utf-8")
        return str(file)


def check_native(target: Loaded, path: str) -> DecoderLM:
    """The target's decoder. Raises ValueError where transformers' own code runs it."""
    if not isinstance(target.lm, DecoderLM):
        raise ValueError(f"--target {path}: transformers' own code runs all layers; give a natively known model")
    return target.lm


def begin_run(raw: RawFile, *, models: Mapping[str, str], dtype: torch.dtype, choices: Record) -> str:
    """The fingerprint of a run of ``models``, paths by what they are for, under the study's own ``choices``."""
    conditions: Record = {
        "machine": describe().identity(),
        "source": hash_source(),
        "num_threads": torch.get_num_threads(),
        "dtype": dtype_name(dtype),
        **{use: _identity(path) for use, path in models.items()},
        **choices,
    }
    return begin(raw, conditions=conditions, notes=lambda: {"date": datetime.now(UTC).isoformat(timespec="seconds")})


def _identity(path: str) -> Record:
    return {"name": Path(path).name, "hash": hash_model(Path(path)) if Path(path).is_dir() else path}
