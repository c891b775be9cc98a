"""Raw records to the lines of a report. Reads no file, measures and draws nothing."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from paceline.bench.line import Group, Line
from paceline.bench.raw import ACCEPTANCE, CELL, RUN, Record
from paceline.bench.statistics import BreakEven, Estimate, break_even, estimate, paired_ratios
from paceline.bench.sweep import Cell

K = TypeVar("K")


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


def figures_of(records: Iterable[Record]) -> list[Line]:
    """A line for every cell that was timed, in the order of their first attempts.

    Raises ValueError for a cell whose run is described nowhere in the file.
    """
    return _lines_of(records, CELL)


def acceptances_of(records: Iterable[Record]) -> list[Line]:
    """A line for every cell that was decoded without timing: counts alone. Raises as ``figures_of``."""
    return _lines_of(records, ACCEPTANCE)


def _lines_of(records: Iterable[Record], kind: str) -> list[Line]:
    taken = attempts_by(records, kind, lambda record: Cell(**record["cell"]))
    return [Line(run=run, conditions=found, cell=cell, attempts=attempts) for run, cell, found, attempts in taken]


def category_figures_of(lines: Iterable[Line]) -> list[Line]:
    """A line for every category of every cell; none for prompts without categories."""
    return [
        replace(line, category=category)
        for line in lines
        for category in dict.fromkeys(line.conditions.get("prompts", {}).get("categories") or ())
    ]


class Sampled(NamedTuple):
    """A cell at a temperature above 0 beside itself at temperature 0, both of one interleaved run.

    Sampled outputs are others, so that drafts fare differently there. What sampling itself costs is how fast steps
    follow each other, which is the ratio of tokens per second if both had the same tokens per step.
    """

    line: Line
    greedy: Line

    @property
    def void(self) -> bool:
        return self.line.void

    @property
    def control(self) -> float:
        return self.line.control

    @property
    def ratio(self) -> Estimate:
        """Steps per second over those of greedy decoding, paired."""
        greedy, own = ([seconds / steps_of(line) for seconds in _decoding(line)] for line in (self.greedy, self.line))
        return estimate(paired_ratios(greedy, own))


def sampled_figures_of(lines: Iterable[Line]) -> list[Sampled]:
    """A line for every cell at a temperature above 0 that a greedy one of ours took turns with."""
    known = {(line.run, line.cell): line for line in lines}
    found: list[Sampled] = []
    for line in known.values():
        greedy = known.get((line.run, replace(line.cell, temperature=0.0, top_p=1.0)))
        group = line.record.get("interleaved")
        if greedy is None or greedy is line or group is None or group != greedy.record.get("interleaved"):
            continue
        if _decoding(line) and _decoding(greedy):
            found.append(Sampled(line, greedy))
    return found


def steps_of(line: Line) -> int:
    """Steps of all outputs of a repeat; 0 where nothing counts them."""
    return line.record["steps"][line.candidate] or 0


def _decoding(line: Line) -> Sequence[float]:
    """Seconds of its steps, repeat by repeat; none where they were not timed or counted."""
    return (line.record.get("decode_seconds", {}).get(line.candidate) or ()) if steps_of(line) else ()


class Durations(NamedTuple):
    """Seconds, of all attempts that were finished; records that do not have them count nothing."""

    timing: float  # from the first warm-up to the last repeat of every run
    starting: float  # loading models for, and starting, what was timed


def durations_of(records: Iterable[Record]) -> Durations:
    """How long a file of raw figures took."""
    timing: dict[object, float] = {}
    starting = 0.0
    for at, record in enumerate(records):
        if "timing_seconds" in record:
            group = record.get("interleaved")
            timing[at if group is None else (record["run"], group)] = record["timing_seconds"]
            starting += record["start_seconds"]
    return Durations(timing=sum(timing.values()), starting=starting)


def break_evens(figures: Sequence[Line]) -> list[tuple[Line, BreakEven]]:
    """For every drafter and draft length that was timed at several batch sizes: where drafting stops paying.

    Each has the line of its first batch size.
    """
    found: defaultdict[tuple[str, Group, str], list[Line]] = defaultdict(list)
    for line in figures:
        if not line.void and line.cell.num_draft_tokens:
            found[line.run, line.group, line.cell.way].append(line)  # runs had other conditions
    return [
        (lines[0], break_even([(line.cell.batch_size, line.speedup.value) for line in lines]))
        for lines in found.values()
        if len(lines) > 1
    ]


def best(figures: Iterable[Line]) -> list[Line]:
    """Of every run, group, batch size, drafter and set the draft length that was fastest; void lines take no part."""
    found: dict[tuple[str, Group, int, str], Line] = {}
    for line in figures:
        key = line.run, line.group, line.cell.batch_size, line.cell.method
        if not line.void and (key not in found or line.speedup.value > found[key].speedup.value):
            found[key] = line
    return list(found.values())


def grid(figures: Iterable[Line]) -> list[list[Line]]:
    """The field's classic table: lines that differ in ``max_tokens`` alone, to be averaged; void lines take no part."""
    found: defaultdict[tuple[str, Cell], list[Line]] = defaultdict(list)
    for line in figures:
        if not line.void and line.cell.num_draft_tokens:
            found[line.run, replace(line.cell, max_tokens=0, top_p=1.0)].append(line)
    return [lines for lines in found.values() if len(lines) > 1]
