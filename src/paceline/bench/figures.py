"""Raw records to the figures of a report, one line per cell. Reads no file, measures and draws nothing."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, TypeAlias, TypeVar

from paceline.bench.limits import limit_of
from paceline.bench.raw import CELL, RUN, Record
from paceline.bench.statistics import (
    BreakEven,
    Estimate,
    break_even,
    efficiency,
    estimate,
    ideal_speedup,
    paired_ratios,
)
from paceline.bench.sweep import CANDIDATE, CONTROL, PLAIN, Cell

PHASES = ("draft", "score", "decide", "rest")
K = TypeVar("K")
Group: TypeAlias = tuple[str, str, float, float, int]  # label of the run, prompts, temperature, top_p, max_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one cell came to. None where nothing counts steps, as in peers, or nothing was left to count.

    Acceptance leaves out outputs that mostly repeat themselves; everything else counts all outputs.
    """

    run: str
    label: str  # the run in words: precision and threads
    suite: str
    cell: Cell
    void: bool  # its control failed at every attempt: the times say nothing
    attempts: int
    control: float  # an engine against itself; 1 but for noise
    speedup: Estimate  # seconds of plain decoding over its own, paired
    tokens_per_second: float
    plain_tokens_per_second: float
    decoding_tokens_per_second: float | None  # without the reading of prompts
    limit_tokens_per_second: float | None  # what the machine allows at these tokens per step (bench/limits)
    start_seconds: float  # loading, and starting a program, for all attempts
    tokens_per_step: float | None  # with the target's own token at the end of each step
    accepted_per_step: float | None  # without it
    acceptance: float | None
    by_position: tuple[float, ...]
    step_seconds: tuple[float, ...]  # of PHASES
    plain_step_seconds: tuple[float, ...]
    ideal: float | None
    efficiency: float | None
    num_texts: int
    num_looping: int
    num_different: int
    first_difference: int | None  # the earliest

    @property
    def group(self) -> Group:
        """What must be equal for lines to belong to one plot, batch sizes aside."""
        return group_of(self.label, self.suite, self.cell)

    @property
    def of_limit(self) -> float | None:
        """The speed of decoding over the limit."""
        if self.decoding_tokens_per_second is None or self.limit_tokens_per_second is None:
            return None
        return self.decoding_tokens_per_second / self.limit_tokens_per_second


def group_of(label: str, suite: str, cell: Cell) -> Group:
    """What a cell shares with those that belong into one table with it."""
    return label, suite, cell.temperature, cell.top_p, cell.max_tokens


def figures_of(records: Iterable[Record]) -> list[Figures]:
    """A line for every cell, of its last attempt, in the order they were first measured.

    Raises ValueError for a cell whose run is described nowhere in the file.
    """
    taken = attempts_by(records, CELL, lambda record: Cell(**record["cell"]))
    return [_figures(conditions, cell, attempts) for _, cell, conditions, attempts in taken]


def attempts_by(
    records: Iterable[Record], kind: str, task_of: Callable[[Record], K]
) -> list[tuple[str, K, Record, list[Record]]]:
    """Run, task, the run's conditions and all attempts, for every task of a kind, in the order of their first ones.

    Raises ValueError for a task whose run is described nowhere in the file.
    """
    runs: dict[str, Record] = {}
    attempts: defaultdict[tuple[str, K], list[Record]] = defaultdict(list)
    for record in records:
        if record["kind"] == RUN:
            runs[record["run"]] = record["conditions"]
        elif record["kind"] == kind:
            attempts[record["run"], task_of(record)].append(record)
    missing = {run for run, _ in attempts} - set(runs)
    if missing:
        raise ValueError(f"no description of run {min(missing)}: the file is not whole; give the one that was written")
    return [(run, task, runs[run], taken) for (run, task), taken in attempts.items()]


def label_of(conditions: Record, record: Record) -> str:
    """A run in words: precision and threads."""
    num_threads = record["num_threads"]
    return f"{conditions['dtype']}, {num_threads} thread{'s' if num_threads > 1 else ''}"


def differences_in(texts: Sequence[Record]) -> dict[str, Any]:
    """How many outputs there are, how many mostly repeat themselves, how many differ from the base, and from where."""
    differences = [text["first_difference"] for text in texts if text["first_difference"] is not None]
    return {
        "num_texts": len(texts),
        "num_looping": sum(text["looping"] for text in texts),
        "num_different": len(differences),
        "first_difference": min(differences, default=None),
    }


def runs_of(records: Iterable[Record]) -> list[Record]:
    """The descriptions of the runs."""
    return [record for record in records if record["kind"] == RUN]


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Seconds, of all attempts that were finished; records that do not have them count nothing."""

    timing: float  # from the first warm-up to the last repeat of every run
    starting: float  # loading models for, and starting, what was timed


def durations_of(records: Iterable[Record]) -> Durations:
    """How long a file of raw figures took."""
    timing: dict[object, float] = {}
    starting = 0.0
    for at, record in enumerate(records):
        if "timing_seconds" in record:
            group = record.get("together")
            timing[at if group is None else (record["run"], group)] = record["timing_seconds"]
            starting += record["start_seconds"]
    return Durations(timing=sum(timing.values()), starting=starting)


def break_evens(figures: Sequence[Figures]) -> list[tuple[Group, str, int, BreakEven]]:
    """For every drafter and draft length that was timed at several batch sizes: where drafting stops paying."""
    lines: defaultdict[tuple[str, Group, str, int], list[tuple[int, float]]] = defaultdict(list)
    for line in figures:
        if not line.void and line.cell.num_draft_tokens:
            key = line.run, line.group, line.cell.drafter, line.cell.num_draft_tokens  # runs had other conditions
            lines[key].append((line.cell.batch_size, line.speedup.value))
    return [
        (group, drafter, count, break_even(points))
        for (_, group, drafter, count), points in lines.items()
        if len(points) > 1
    ]


def best(figures: Iterable[Figures]) -> list[Figures]:
    """Of every run, group, batch size and drafter the draft length that was fastest; void lines take no part."""
    found: dict[tuple[str, Group, int, str], Figures] = {}
    for line in figures:
        key = line.run, line.group, line.cell.batch_size, line.cell.drafter
        if not line.void and (key not in found or line.speedup.value > found[key].speedup.value):
            found[key] = line
    return list(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class GridLine:
    """Means over the lengths of text that were timed."""

    label: str
    suite: str
    drafter: str
    batch_size: int
    temperature: float
    num_draft_tokens: int
    max_tokens: tuple[int, ...]  # those of them whose cells are not void
    speedup: float
    tokens_per_second: float


def grid(figures: Iterable[Figures]) -> list[GridLine]:
    """The field's classic table: for every draft length, means over ``max_tokens``; void lines take no part."""
    groups: defaultdict[tuple[str, str, float, int, str, int], list[Figures]] = defaultdict(list)
    for line in figures:
        cell = line.cell
        if not line.void and cell.num_draft_tokens:
            key = line.run, line.suite, cell.temperature, cell.batch_size, cell.drafter, cell.num_draft_tokens
            groups[key].append(line)
    return [
        GridLine(
            label=lines[0].label,
            suite=suite,
            drafter=drafter,
            batch_size=batch,
            temperature=temperature,
            num_draft_tokens=count,
            max_tokens=tuple(line.cell.max_tokens for line in lines),
            speedup=fmean(line.speedup.value for line in lines),
            tokens_per_second=fmean(line.tokens_per_second for line in lines),
        )
        for (_, suite, temperature, batch, drafter, count), lines in groups.items()
        if len(lines) > 1
    ]


def _figures(conditions: Record, cell: Cell, taken: Sequence[Record]) -> Figures:
    record = taken[-1]
    seconds, texts = record["seconds"], record["texts"]
    speedup = estimate(paired_ratios(seconds[PLAIN], seconds[CANDIDATE]))
    own, plain = (_step_seconds(record, name) for name in (CANDIDATE, PLAIN))
    steps = record["steps"][CANDIDATE]
    per_step = record["num_tokens"] / steps if steps else None
    counted = [text["counts"] for text in texts if text["counts"] is not None and not text["looping"]]
    rates = _by_position(counted)
    drafted = sum(sum(counts["drafted"]) for counts in counted)
    accepted = sum(sum(counts["accepted"]) for counts in counted)
    counted_steps = sum(counts["steps"] for counts in counted)
    costs = (
        {"tokens_per_step": per_step, "draft_seconds": own[0], "target_seconds": plain[1]}
        if per_step is not None and own and plain
        else None
    )
    return Figures(
        run=record["run"],
        label=label_of(conditions, record),
        suite=conditions["suite"],
        cell=cell,
        void=record["void"],
        attempts=len(taken),
        control=median(paired_ratios(seconds[PLAIN], seconds[CONTROL])),
        speedup=speedup,
        tokens_per_second=median(record["num_tokens"] / own_seconds for own_seconds in seconds[CANDIDATE]),
        plain_tokens_per_second=median(record["num_tokens"] / plain_seconds for plain_seconds in seconds[PLAIN]),
        decoding_tokens_per_second=_decoding(record),
        limit_tokens_per_second=limit_of(record, conditions, cell),
        start_seconds=sum(attempt.get("start_seconds", 0.0) for attempt in taken),
        tokens_per_step=sum(counts["emitted"] for counts in counted) / counted_steps if counted_steps else None,
        accepted_per_step=accepted / counted_steps if drafted else None,
        acceptance=accepted / drafted if drafted else None,
        by_position=rates,
        step_seconds=own,
        plain_step_seconds=plain,
        ideal=None if costs is None else ideal_speedup(**costs),
        efficiency=None if costs is None else efficiency(speedup.value, **costs),
        **differences_in(texts),
    )


def _decoding(record: Record) -> float | None:
    """Tokens per second of the steps alone; None where only whole calls were timed."""
    taken = record.get("decode_seconds", {}).get(CANDIDATE)
    return median(record["num_tokens"] / seconds for seconds in taken) if taken else None


def _step_seconds(record: Record, name: str) -> tuple[float, ...]:
    """Seconds of a step by phase, mean over all steps of all repeats; nothing where no steps were counted."""
    phases, steps = record["phases"].get(name), record["steps"].get(name)
    if not phases or not steps:
        return ()
    return tuple(sum(repeat[at] for repeat in phases) / (len(phases) * steps) for at in range(len(PHASES)))


def _by_position(counted: Sequence[Record]) -> tuple[float, ...]:
    """Accepted over drafted tokens at every depth that was drafted."""
    depth = max((len(counts["drafted"]) for counts in counted), default=0)
    drafted = [sum(counts["drafted"][at] for counts in counted) for at in range(depth)]
    accepted = [sum(counts["accepted"][at] for counts in counted) for at in range(depth)]
    return tuple(kept / tried for kept, tried in zip(accepted, drafted, strict=True) if tried)
