"""What do rows of a batch lose that do not advance independently: in lock-step, or padded and realigned?"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Annotated, Any, ClassVar

from benchmarks.batched_modes import AGAIN, EAGER, KERNEL, LOCK_STEP, PER_ROW, REALIGNED, Cell, Mode, prepare
from benchmarks.study import (
    Draft,
    ProcessorTime,
    Progress,
    Study,
    Suite,
    Taken,
    Target,
    Threads,
    Timing,
    Turns,
    check_counts,
    conditions_of,
    counts,
    date,
    named,
    native,
    option,
    pair_of,
    run_cells,
    sound,
    time_cells,
)
from paceline.api import load
from paceline.api.prompts import encode
from paceline.bench.columns import Column, Section, grouped
from paceline.bench.raw import RawFile, Record
from paceline.bench.statistics import Estimate, estimate, paired_ratios
from paceline.bench.suites import prompts_of
from paceline.bench.workbench import check_batches, check_lengths
from paceline.core.stats import Summary

SIZE = (3.6, 3.6)  # inches of a panel
CAPTION = (
    "Above 1 a batch takes longer than one whose rows advance independently: lock-step the more, the more rows there "
    "are, for a row then advances by as few tokens as the worst of them; realigned rows pay for moving their caches."
)


def acceptance(summary: Summary) -> float:
    """The probability that a drafted token is accepted if all before it were."""
    tried = [min(known) for known in zip(summary.drafted, [summary.steps, *summary.accepted], strict=False)]
    return sum(summary.accepted) / sum(tried) if sum(tried) else 0.0


def locked_model(alpha: float, *, num_rows: int, num_draft_tokens: int) -> float:
    """Tokens a step in lock-step, were every token of every row accepted by itself with probability ``alpha``.

    A draft survives a place where all rows accept theirs, with probability alpha^B.
    """
    return sum(alpha ** (num_rows * depth) for depth in range(num_draft_tokens + 1))


def _summary(record: Record, mode: str = PER_ROW) -> Summary:
    return Summary(**record["ways"][mode]["summary"])


def tokens_per_second(record: Record) -> float:
    """Of the batch whose rows advance independently, median."""
    seconds = record["ways"][PER_ROW]["seconds"]
    return estimate([_summary(record).emitted / len(seconds) / one for one in seconds]).value


def tokens_per_step(mode: str) -> Any:
    """Of a row, accepted ones and the next."""
    return lambda record: _summary(record, mode).mean_acceptance_length


def by_model(record: Record) -> float:
    """What ``locked_model`` says of lock-step, with the acceptance of rows that advance independently."""
    cell = Cell(**record["cell"])
    alpha = acceptance(_summary(record))
    return locked_model(alpha, num_rows=cell.num_rows, num_draft_tokens=cell.num_draft_tokens)


def cost(mode: str, base: str = PER_ROW) -> Any:
    """Time of whole batches in a mode over that in another; None where a mode was not timed."""

    def ratio(record: Record) -> Estimate | None:
        modes = record["ways"]
        return estimate(paired_ratios(modes[mode]["seconds"], modes[base]["seconds"])) if mode in modes else None

    return ratio


def aligning(record: Record) -> float | None:
    """Share of the realigned mode's time that moves take."""
    mode = record["ways"].get(REALIGNED)
    return mode and median(part / all_ for part, all_ in zip(mode["aligning"], mode["seconds"], strict=True))


def same(record: Record) -> str:
    """Shares of outputs that are those of rows that advance independently."""
    num_texts = len(record["ways"][PER_ROW]["seconds"]) * record["cell"]["num_rows"]
    modes = [mode for name, mode in record["ways"].items() if name in (LOCK_STEP, REALIGNED)]
    return " ".join(f"{mode['same'] / num_texts:.0%}" for mode in modes)


COLUMNS: list[Column[Record]] = [
    Column("rows", "cell.num_rows"),
    Column("tokens/s", tokens_per_second, ".0f"),
    Column("tokens a step", tokens_per_step(PER_ROW), ".2f"),
    Column("in lock-step", tokens_per_step(LOCK_STEP), ".2f"),
    Column("by the model", by_model, ".2f"),
    Column("lock-step", cost(LOCK_STEP), ".3f"),
    Column("realigned", cost(REALIGNED), ".3f"),
    Column("moving", aligning, ".1%"),
    Column("same", same),
    Column("control", lambda line: f"{cost(PER_ROW, AGAIN)(line).value:.3f}{' (void)' if line['void'] else ''}"),
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


def turns_of(cell: Cell, **given: Any) -> Turns:
    """Whole batches in every mode, batch by batch; a batch takes the prompts that come next.

    Raises ValueError for what ``prepare`` refuses, and, once timed, RuntimeError where the kernel, which is
    batch-invariant, wrote differently in two modes.
    """
    modes = prepare(cell, **given)

    def found(taken: Taken) -> Record:
        ways = {name: _found(mode, modes[PER_ROW], taken[name]) for name, mode in modes.items()}
        if cell.runtime == KERNEL and any(mode["same"] < ways[PER_ROW]["same"] for mode in ways.values()):
            raise RuntimeError(f"{cell.name}: two modes wrote different tokens; please report it")
        return {"ways": ways}

    return Turns(
        calls={name: mode.decode for name, mode in modes.items()},
        before={name: mode.begin for name, mode in modes.items()},
        controls={PER_ROW: AGAIN},
        found=found,
    )


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

    target: Target = None
    draft: Draft = None
    batch: Annotated[tuple[int, ...], counts("Rows of a batch.")] = (1, 2, 4, 8, 16)
    num_draft_tokens: Annotated[int, option("Tokens drafted per step.", name="--k")] = 4
    suite: Suite = "mixed"
    num_prompts: Annotated[int, option("How many; batches take them in turn.")] = 16
    max_tokens: Annotated[int, option("New tokens of every row.")] = 64
    repeats: Annotated[int, option("Timed batches of each mode.")] = 5
    runtime: Annotated[str, option("What runs forwards: eager, kernel, or both.")] = "eager,kernel"
    processor_time: ProcessorTime = False
    dtype: Annotated[str, option("Precision.")] = "float32"
    threads: Threads = None

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
            timing = Timing(repeats=self.repeats, seconds=0.0, processor_time=self.processor_time)
            given = {"prompts": prompts, "num_tokens": self.max_tokens, "clock": timing.clock}
            time_cells(
                [Cell(runtime=runtime, num_rows=rows, num_draft_tokens=self.num_draft_tokens) for rows in self.batch],
                partial(turns_of, target=target, draft=draft, **given),
                raw=raw,
                identify=run_cells(self.kind, run),
                timing=timing,
                warm_up=0,
                say=say,
            )

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Record]]:
        """A table for every runtime and draft length, a line for every number of rows."""
        return grouped(lambda kind: f"{kind[0]}, k = {kind[1]}", COLUMNS, self.last(run, records), _kind)

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """What the figures are."""
        return NOTES

    def draw(self, run: Record, records: Sequence[Record], *, title: str) -> str:
        """A panel of times for every runtime, and one of tokens a step, over the rows; lines for each draft length."""
        from paceline.bench import drawing  # needs the optional matplotlib

        measured = self.last(run, records)
        lines = sound(measured)
        runtimes = list(dict.fromkeys(line["cell"]["runtime"] for line in lines))

        def times(axes: Any, lines: Sequence[Record]) -> None:
            for count, rows, own in _by_length(lines):
                for mode, name in ((LOCK_STEP, "lock-step"), (REALIGNED, "realigned")):
                    values = [value for line in own if (value := cost(mode)(line)) is not None]
                    if len(values) == len(own):
                        drawing.error_bars(axes, rows, values, f"{name}, k = {count}")
            drawing.baseline(axes)

        def tokens(axes: Any, lines: Sequence[Record]) -> None:
            for count, rows, own in _by_length(lines):
                for mode in (PER_ROW, LOCK_STEP):
                    axes.plot(rows, list(map(tokens_per_step(mode), own)), marker="o", label=f"{mode}, k = {count}")
                style = {"linestyle": ":", "marker": "", "color": "0.4"}
                axes.plot(rows, list(map(by_model, own)), **style, label=f"model of lock-step, k = {count}")

        def panels(axes: Sequence[Any]) -> None:
            for place, runtime in zip(axes, [*runtimes, None], strict=True):
                here = [line for line in lines if line["cell"]["runtime"] == (runtime or runtimes[0])]
                (times if runtime else tokens)(place, here)
                drawing.powers_of_two(place, sorted({line["cell"]["num_rows"] for line in here}))
                what = "time over independent rows" if runtime else "tokens per step of a row"
                drawing.finish(place, x="rows", y=what, title=runtime or "tokens", columns=1)

        columns = len(runtimes) + 1 if runtimes else 0
        return drawing.draw_panels(
            panels,
            size=(SIZE[0] * columns, SIZE[1]),
            title=title,
            caption=f"{CAPTION}{drawing.left_out(len(measured) - len(lines), len(measured))}",
            columns=columns,
        )

    def _runtimes(self) -> list[str]:
        found = list(dict.fromkeys(name.strip() for name in self.runtime.split(",")))
        if not set(found) <= {EAGER, KERNEL}:
            raise ValueError(f"--runtime {self.runtime}: known are {EAGER}, {KERNEL}, and both of them")
        return found


def _kind(record: Record) -> tuple[str, int]:
    return record["cell"]["runtime"], record["cell"]["num_draft_tokens"]


def _by_length(lines: Sequence[Record]) -> Iterator[tuple[int, list[int], list[Record]]]:
    """Each draft length, its numbers of rows and its lines, by rows."""
    for count in sorted({line["cell"]["num_draft_tokens"] for line in lines}):
        own = [line for line in lines if line["cell"]["num_draft_tokens"] == count]
        own.sort(key=lambda line: line["cell"]["num_rows"])
        yield count, [line["cell"]["num_rows"] for line in own], own
