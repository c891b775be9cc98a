"""The command ``python -m benchmarks batched``: loads the pair, and has the study measured and shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.table import Table

from benchmarks.batched.cases import EAGER, KERNEL, Cell
from benchmarks.batched.measure import lacking, measure_cells
from benchmarks.batched.table import figures_of, footnotes, tables_of
from benchmarks.scaling.measure import Timing
from benchmarks.study import Study, begin_run, check_native
from paceline.api import Loaded, embedded_pair, load
from paceline.bench.raw import RawFile, Record
from paceline.bench.workbench import check_batches, check_lengths
from paceline.cli.bench_inputs import choose_prompts, read_counts
from paceline.cli.console import open_notes
from paceline.cli.models import load_target
from paceline.cli.options import ModelOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Batched(Study):
    """The command's options."""

    title: ClassVar[str] = "How rows advance"

    target: str | None
    draft: str | None
    batch: str
    num_draft_tokens: int
    suite: str
    num_prompts: int
    max_tokens: int
    repeats: int
    runtime: str
    processor_time: bool

    def check(self) -> None:
        """Raise ValueError for options that mean nothing."""
        for option, value in (("k", self.num_draft_tokens), ("max-tokens", self.max_tokens), ("repeats", self.repeats)):
            if value < 1:
                raise ValueError(f"--{option} {value}: give at least 1")
        if (self.target is None) != (self.draft is None):
            raise ValueError("--target and --draft go together: give both, or neither for the embedded pair")
        check_batches(self.num_prompts, read_counts(self.batch, option="--batch"))
        self._runtimes()

    def measure(self, raw: RawFile) -> None:
        """Put into ``raw`` what it lacks, with the pair loaded for one runtime after the other."""
        notes = open_notes(quiet=False, log_level=None)
        paths = tuple(map(str, embedded_pair())) if self.target is None else (self.target, self.draft or "")
        models: dict[str, str] = {"target": paths[0], "draft": paths[1]}
        for runtime in self._runtimes():
            target, draft = self._load(models, runtime)
            prompts = self._prompts(target)
            run = begin_run(raw, models=models, dtype=target.dtype, choices=self._choices())
            with notes.status("measuring ...") as status:
                measure_cells(
                    lacking(self._cells(runtime), raw=raw, run=run),
                    target=target,
                    draft=draft,
                    prompts=prompts,
                    num_tokens=self.max_tokens,
                    timing=Timing(repeats=self.repeats, seconds=0.0, processor_time=self.processor_time),
                    raw=raw,
                    run=run,
                    say=status.update,
                )

    def tables(self, records: Sequence[Record]) -> list[Table]:
        """What ``records`` say, run by run."""
        return tables_of(records)

    def footnotes(self) -> list[str]:
        """What the figures are."""
        return footnotes()

    def draw(self, records: Sequence[Record], *, title: str) -> str:
        """What the ways cost over the rows of a batch."""
        from benchmarks.batched.plot import draw  # needs the optional matplotlib

        return draw(figures_of(records), title=title)

    def _runtimes(self) -> list[str]:
        found = list(dict.fromkeys(name.strip() for name in self.runtime.split(",")))
        if not set(found) <= {EAGER, KERNEL}:
            raise ValueError(f"--runtime {self.runtime}: known are {EAGER}, {KERNEL}, and both of them")
        return found

    def _cells(self, runtime: str) -> list[Cell]:
        return [
            Cell(runtime=runtime, num_rows=rows, num_draft_tokens=self.num_draft_tokens)
            for rows in read_counts(self.batch, option="--batch")
        ]

    def _choices(self) -> Record:
        return {
            "suite": self.suite,
            "num_prompts": self.num_prompts,
            "max_tokens": self.max_tokens,
            "repeats": self.repeats,
            "processor_time": self.processor_time,
        }

    def _load(self, models: dict[str, str], runtime: str) -> tuple[Loaded, Loaded]:
        """Target and draft, laid out for ``runtime``."""
        eager = runtime == EAGER
        target = load_target(
            ModelOptions(
                model=models["target"],
                dtype=self.dtype,
                device="cpu",
                threads=self.threads,
                revision=None,
                trust_remote_code=False,
                enforce_eager=eager,
            )
        )
        check_native(target, models["target"])
        draft = load(models["draft"], dtype=target.dtype, device=target.lm.device, enforce_eager=eager)
        if eager:
            check_native(draft, models["draft"])
        return target, draft

    def _prompts(self, target: Loaded) -> Sequence[Sequence[int]]:
        prompts = choose_prompts(
            target, suite=self.suite, prompt_file=None, questions=None, count=self.num_prompts, seed=0
        ).tokens
        check_lengths(target, prompts, [self.max_tokens], num_nodes=self.num_draft_tokens + 1)
        return prompts
