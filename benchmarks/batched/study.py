"""The study ``batched``: times all modes of every batch in turn, and shows what rows that wait for others lose."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any, ClassVar

from benchmarks.batched.modes import AGAIN, EAGER, KERNEL, LOCK_STEP, PER_ROW, REALIGNED, Cell, Mode, prepare
from benchmarks.study import (
    Progress,
    Study,
    Timing,
    check_counts,
    conditions_of,
    counts,
    date,
    missing,
    named,
    native,
    option,
    pair_of,
    run_cells,
)
from paceline.api import Loaded, load
from paceline.api.prompts import encode
from paceline.bench.columns import Column, Section, grouped, interval, number
from paceline.bench.raw import RawFile, Record
from paceline.bench.statistics import Estimate, estimate, is_void, paired_ratios
from paceline.bench.suites import prompts_of
from paceline.bench.timing import time_in_turn
from paceline.bench.workbench import check_batches, check_lengths
from paceline.core.stats import Summary

SIZE = (3.6, 3.4)  # inches of a panel


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedFigures:
    """One cell. Times are of whole batches, over those of rows that advance independently."""

    cell: Cell
    tokens_per_second: Estimate  # of the batch, per row
    tokens_per_step: float  # of a row, accepted ones and the next
    locked_tokens_per_step: float
    model_tokens_per_step: float  # what ``locked_model`` says of the above
    locked: Estimate
    realigned: Estimate | None
    aligning: float | None  # share of the realigned mode's time
    same: dict[str, float]  # share of outputs that are those of rows that advance independently
    control: Estimate
    void: bool


def acceptance(summary: Summary) -> float:
    """The probability that a drafted token is accepted if all before it were."""
    tried = [min(known) for known in zip(summary.drafted, [summary.steps, *summary.accepted], strict=False)]
    return sum(summary.accepted) / sum(tried) if sum(tried) else 0.0


def locked_model(alpha: float, *, num_rows: int, num_draft_tokens: int) -> float:
    """Tokens a step in lock-step, were every token of every row accepted by itself with probability ``alpha``.

    A draft survives a place where all rows accept theirs, with probability alpha^B.
    """
    return sum(alpha ** (num_rows * depth) for depth in range(num_draft_tokens + 1))


def figures_of(records: Sequence[Record]) -> list[BatchedFigures]:
    """Of every cell of every run; where one was measured again, the newest."""
    found = {(record["run"], Cell(**record["cell"])): record for record in records if record["kind"] == Batched.kind}
    return [_figures(record) for record in found.values()]


def _figures(record: Record) -> BatchedFigures:
    cell, modes = Cell(**record["cell"]), record["ways"]
    alone = modes[PER_ROW]["seconds"]
    summaries = {name: Summary(**mode["summary"]) for name, mode in modes.items()}
    base, padded = summaries[PER_ROW], modes.get(REALIGNED)
    num_texts = len(alone) * cell.num_rows
    model = locked_model(acceptance(base), num_rows=cell.num_rows, num_draft_tokens=cell.num_draft_tokens)
    shares = [part / whole for part, whole in zip(padded["aligning"], padded["seconds"], strict=True)] if padded else []
    return BatchedFigures(
        cell=cell,
        tokens_per_second=estimate([base.emitted / len(alone) / seconds for seconds in alone]),
        tokens_per_step=base.mean_acceptance_length,
        locked_tokens_per_step=summaries[LOCK_STEP].mean_acceptance_length,
        model_tokens_per_step=model,
        locked=estimate(paired_ratios(modes[LOCK_STEP]["seconds"], alone)),
        realigned=estimate(paired_ratios(padded["seconds"], alone)) if padded else None,
        aligning=median(shares) if padded else None,
        same={name: mode["same"] / num_texts for name, mode in modes.items() if name in (LOCK_STEP, REALIGNED)},
        control=estimate(paired_ratios(alone, modes[AGAIN]["seconds"])),
        void=record["void"],
    )


TIMES = interval(".3f", "{} [{}, {}]")
COLUMNS: list[Column[BatchedFigures]] = [
    Column(heading="rows", get=lambda line: line.cell.num_rows),
    Column(heading="tokens/s", get=lambda line: line.tokens_per_second.value, form=number(".0f")),
    Column(heading="tokens a step", get=lambda line: line.tokens_per_step, form=number(".2f")),
    Column(heading="in lock-step", get=lambda line: line.locked_tokens_per_step, form=number(".2f")),
    Column(heading="by the model", get=lambda line: line.model_tokens_per_step, form=number(".2f")),
    Column(heading="lock-step", get=lambda line: line.locked, form=TIMES),
    Column(heading="realigned", get=lambda line: line.realigned, form=TIMES),
    Column(heading="moving", get=lambda line: line.aligning, form=number(".1%")),
    Column(heading="same", get=lambda line: " ".join(f"{share:.0%}" for share in line.same.values())),
    Column(heading="control", get=lambda line: f"{line.control.value:.3f}{' (void)' if line.void else ''}"),
]
NOTES = [
    "lock-step, realigned: time of a whole batch over that of rows that advance independently, above 1 where it costs; "
    "median [95 % interval] of paired ratios",
    "tokens a step: of a row, accepted ones and the target's own; independently, in lock-step, and what the model says "
    "of lock-step: the sum of alpha^(B i), i = 0 to k, with the alpha of rows that advance independently",
    "moving: share of the realigned batch's time that the moves of keys and values take",
    "same: outputs in lock-step and realigned that are those of rows that advance independently",
    "control: rows that advance independently, against themselves; (void) where they differed by over 3 %",
]


def measure_cells(
    cells: Sequence[Cell],
    *,
    target: Loaded,
    draft: Loaded,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    timing: Timing,
    raw: RawFile,
    run: str,
    say: Progress,
) -> None:
    """Put into ``raw`` what it lacks of ``cells``: seconds of whole batches in every mode, batch by batch in turn.

    A batch takes the prompts that come next. Raises ValueError for what ``prepare`` refuses, and RuntimeError where the
    kernel, which is batch-invariant, wrote differently in two modes.
    """
    for cell, identity in missing(raw, cells, run_cells(Batched.kind, run), say):
        modes = prepare(cell, target=target, draft=draft, prompts=prompts, num_tokens=num_tokens, clock=timing.clock)
        taken = time_in_turn(
            {name: mode.decode for name, mode in modes.items()},
            before={name: mode.begin for name, mode in modes.items()},
            repeats=timing.repeats,
            seconds=timing.seconds,
            clock=timing.clock,
            warm_up=0,
        )
        found = {name: _found(mode, modes[PER_ROW], taken[name]) for name, mode in modes.items()}
        if cell.runtime == KERNEL and any(mode["same"] < found[PER_ROW]["same"] for mode in found.values()):
            raise RuntimeError(f"{cell.name}: two modes wrote different tokens; please report it")
        raw.append({**identity, "void": is_void(paired_ratios(taken[PER_ROW], taken[AGAIN])), "ways": found})


def _found(mode: Mode, base: Mode, seconds: Sequence[float]) -> dict[str, Any]:
    these, others = ([tokens for done in some.done for tokens in done.sequences] for some in (mode, base))
    none = Summary.empty(mode.decoder.batch.max_depth)
    return {
        "seconds": list(seconds),
        "aligning": [done.aligning for done in mode.done],
        "num_steps": [done.num_steps for done in mode.done],
        "same": sum(one == other for one, other in zip(these, others, strict=True)),  # outputs as decoded per row
        "summary": asdict(sum((done.summary for done in mode.done), none)),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Batched(Study):
    """What do rows of a batch lose that do not advance independently?

    Rows accept different numbers of drafts. They advance each by its own, or in lock-step by the least that any of them
    accepted, or by their own but padded, so that all are moved to end at one slot after every step. The last runs
    eagerly only, so that all three are compared there, and the first two by the kernel also. All decode the same
    batches greedily, in turn.
    """

    kind: ClassVar[str] = "batched"
    title: ClassVar[str] = "How rows advance"

    target: Annotated[Path | None, option("Directory of the target; the embedded pair by default.")] = None
    draft: Annotated[Path | None, option("Directory of its draft model.")] = None
    batch: Annotated[tuple[int, ...], counts("Rows of a batch.")] = (1, 2, 4, 8, 16)
    num_draft_tokens: Annotated[int, option("Tokens drafted per step.", name="--k")] = 4
    suite: Annotated[str, option("Prompts, as those of paceline bench.")] = "mixed"
    num_prompts: Annotated[int, option("How many; batches take them in turn.")] = 16
    max_tokens: Annotated[int, option("New tokens of every row.")] = 64
    repeats: Annotated[int, option("Timed batches of each mode.")] = 5
    runtime: Annotated[str, option("What runs forwards: eager, kernel, or both.")] = "eager,kernel"
    processor_time: Annotated[bool, option("Count what one thread computed, where other programs run.")] = False
    dtype: Annotated[str, option("Precision.")] = "float32"
    threads: Annotated[int | None, option("Of torch; its own choice by default.")] = None

    def check(self) -> None:
        """Raise ValueError for options that mean nothing."""
        check_counts(k=self.num_draft_tokens, max_tokens=self.max_tokens, repeats=self.repeats)
        pair_of(self.target, self.draft)
        check_batches(self.num_prompts, self.batch)
        self._runtimes()

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Put into ``raw`` what it lacks, with the pair loaded for one runtime after the other."""
        names = ("suite", "num_prompts", "max_tokens", "repeats", "processor_time")
        paths = pair_of(self.target, self.draft)
        for runtime in self._runtimes():
            eager = runtime == EAGER
            target, draft = (load(path, dtype=self.dtype, device="cpu", enforce_eager=eager) for path in paths)
            for loaded, path in zip((target, draft) if eager else (target,), paths, strict=False):
                native(loaded, path)
            prompts = [encode(target, text) for text in prompts_of(self.suite, self.num_prompts, seed=0)]
            check_lengths(target, prompts, [self.max_tokens], num_nodes=self.num_draft_tokens + 1)
            choices = {name: getattr(self, name) for name in names}
            run = raw.begin(conditions_of(named(paths), target.dtype, **choices), date)
            measure_cells(
                [Cell(runtime=runtime, num_rows=rows, num_draft_tokens=self.num_draft_tokens) for rows in self.batch],
                target=target,
                draft=draft,
                prompts=prompts,
                num_tokens=self.max_tokens,
                timing=Timing(repeats=self.repeats, seconds=0.0, processor_time=self.processor_time),
                raw=raw,
                run=run,
                say=say,
            )

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[BatchedFigures]]:
        """A table for every runtime and draft length, a line for every number of rows."""
        return grouped(
            lambda kind: f"{kind[0]}, k = {kind[1]}",
            COLUMNS,
            figures_of(records),
            lambda line: (line.cell.runtime, line.cell.num_draft_tokens),
        )

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """What the figures are."""
        return NOTES

    def draw(self, run: Record, records: Sequence[Record], *, title: str) -> str:
        """A panel of times for every runtime, and one of tokens a step, over the rows; lines for each draft length."""
        from benchmarks.batched.plot import draw  # needs the optional matplotlib

        return draw(figures_of(records), title=title)

    def _runtimes(self) -> list[str]:
        found = list(dict.fromkeys(name.strip() for name in self.runtime.split(",")))
        if not set(found) <= {EAGER, KERNEL}:
            raise ValueError(f"--runtime {self.runtime}: known are {EAGER}, {KERNEL}, and both of them")
        return found
