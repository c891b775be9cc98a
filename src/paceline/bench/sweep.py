"""Every combination of drafter, draft length, batch size, temperature and length, measured and kept. Draws no figure.

A task is what is timed at once: a base, which runs twice as a control, and a candidate. Its raw figures are appended to
a file as soon as they are there; what the file holds is not measured again. A cell is one combination, and its base is
plain decoding. Other tasks (bench/duels) are run alike.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Protocol, TypeAlias, TypeVar

from paceline.bench.raw import CELL, FAILURE, RUN, RawFile, Record, fingerprint
from paceline.bench.runner import Comparison, Configuration, DecodingFailed, Measured, compare
from paceline.bench.statistics import first_difference, is_void
from paceline.text.loops import distinct_share, is_looping

PLAIN, CONTROL, CANDIDATE = "plain", "control", "candidate"
Sides: TypeAlias = tuple[Configuration, Configuration, Configuration]  # a base, a candidate, the base again


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One combination; ``num_draft_tokens`` is 0 for what drafts nothing."""

    drafter: str
    num_draft_tokens: int
    batch_size: int
    temperature: float
    max_tokens: int

    def __str__(self) -> str:
        return f"{self.way}, batch {self.batch_size}, temperature {self.temperature:g}"

    @property
    def way(self) -> str:
        """The drafter and its draft length."""
        return f"{self.drafter} k={self.num_draft_tokens}" if self.num_draft_tokens else self.drafter

    def identity(self) -> Record:
        """The fields of its records that no other task's have."""
        return {"kind": CELL, "cell": asdict(self)}

    def sides(self, workbench: "Workbench") -> Sides:
        """Its own decoding against plain decoding."""
        return (
            workbench.plain(PLAIN, self),
            workbench.candidate(CANDIDATE, self),
            workbench.plain(CONTROL, self),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """How one peer decodes: ``plain`` without a draft, ``drafting`` with one, in ``batches`` or for one text alone."""

    plain: str
    drafting: tuple[str, ...]
    batches: bool

    def drafting_at(self, batch_size: int) -> tuple[str, ...]:
        """Those that there are for so many texts at once."""
        return self.drafting if self.batches or batch_size == 1 else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """What is combined: our ``drafters`` and all ways of our ``peers`` with everything else."""

    drafters: Sequence[str]
    num_draft_tokens: Sequence[int]
    batch_sizes: Sequence[int]
    temperatures: Sequence[float]
    max_tokens: Sequence[int]
    peers: Sequence[Ways] = ()

    def cells(self) -> list[Cell]:
        """All combinations that there are, those of a drafter together."""
        return list(self._cells())

    def _cells(self) -> Iterator[Cell]:
        for temperature, max_tokens, batch in product(self.temperatures, self.max_tokens, self.batch_sizes):
            for drafter, count in self._decodings(batch):
                yield Cell(
                    drafter=drafter,
                    num_draft_tokens=count,
                    batch_size=batch,
                    temperature=temperature,
                    max_tokens=max_tokens,
                )

    def _decodings(self, batch: int) -> Iterator[tuple[str, int]]:
        yield from product(self.drafters, self.num_draft_tokens)
        for peer in self.peers:
            yield peer.plain, 0
            yield from product(peer.drafting_at(batch), self.num_draft_tokens)


class Workbench(Protocol):
    """Makes what is timed."""

    def plain(self, name: str, cell: Cell) -> Configuration:
        """Plain decoding of the same prompts."""
        ...

    def candidate(self, name: str, cell: Cell) -> Configuration:
        """The cell's own decoding."""
        ...


class Task(Protocol):
    """What is timed at once. Equal identities are the same task."""

    def identity(self) -> Record:
        """The fields of its records that no other task's have, the kind among them."""
        ...

    def sides(self, workbench: Workbench) -> Sides:
        """What is timed, in this order; the first is the base of all ratios, the last its control."""
        ...


T = TypeVar("T", bound=Task)


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocols:
    """How a cell is timed. Raises ValueError for counts below 1."""

    repeats: int = 5
    warm_up: int = 1
    attempts: int = 3  # of a cell whose control fails

    def __post_init__(self) -> None:
        for name, value in (("repeats", self.repeats), ("attempts", self.attempts)):
            if value < 1:
                raise ValueError(f"{name}={value}: give at least 1")


def begin_run(raw: RawFile, *, conditions: Record, notes: Record, protocol: Protocols) -> str:
    """Write to ``raw`` under what conditions figures are taken, unless it says so already; the run's fingerprint."""
    whole = {**conditions, "protocol": {"repeats": protocol.repeats, "warm_up": protocol.warm_up}}
    run = fingerprint(whole)
    if not any(record["kind"] == RUN and record["run"] == run for record in raw.records):
        raw.append({"kind": RUN, "run": run, "conditions": whole, "notes": notes})
    return run


def run_sweep(
    tasks: Sequence[T],
    *,
    workbench: Workbench,
    raw: RawFile,
    conditions: Record,
    notes: Record,
    protocol: Protocols,
    clock: Callable[[], float] = time.perf_counter,
    progress: Callable[[T, int, str], None] | None = None,
) -> str:
    """Measure what ``raw`` lacks of ``tasks``; the fingerprint of the run.

    ``conditions`` must be equal for figures to belong together; ``notes`` (the date, say) need not. ``progress`` is
    told the task, how many are done, and what happens. A task with a side that fails is written down as such, and the
    others go on. Raises ValueError for unequal token counts.
    """
    run = begin_run(raw, conditions=conditions, notes=notes, protocol=protocol)
    for done, task in enumerate(tasks):
        for attempt in range(attempts_of(raw.records, run, task), protocol.attempts):
            if is_settled(raw.records, run, task):
                break
            try:
                comparison = _compare(task, workbench, protocol, clock, _telling(progress, task, done))
            except DecodingFailed as error:
                raw.append({"kind": FAILURE, "run": run, "task": task.identity(), "message": str(error)})
                break
            raw.append({"run": run, **task.identity(), "attempt": attempt, **_record(comparison)})
    return run


def _compare(
    task: Task,
    workbench: Workbench,
    protocol: Protocols,
    clock: Callable[[], float],
    progress: Callable[[str], None] | None,
) -> Comparison:
    if progress is not None:
        progress("loading")
    sides = task.sides(workbench)
    return compare(
        sides,
        baseline=sides[0].name,
        repeats=protocol.repeats,
        warm_up=protocol.warm_up,
        clock=clock,
        progress=progress,
    )


def attempts_of(records: Sequence[Record], run: str, task: Task) -> int:
    """How often a task was measured."""
    return len(_taken(records, run, task))


def is_settled(records: Sequence[Record], run: str, task: Task) -> bool:
    """Whether a task was measured and its control held."""
    return any(not record["void"] for record in _taken(records, run, task))


def _taken(records: Sequence[Record], run: str, task: Task) -> list[Record]:
    wanted = {"run": run, **task.identity()}.items()
    return [record for record in records if all(record.get(name) == value for name, value in wanted)]


def _telling(progress: Callable[[T, int, str], None] | None, task: T, done: int) -> Callable[[str], None] | None:
    return None if progress is None else lambda what: progress(task, done, what)


def _record(comparison: Comparison) -> dict[str, object]:
    base, candidate, control = comparison.measured
    return {
        "void": is_void(control.speedup.values),
        "num_threads": comparison.num_threads,
        "num_tokens": candidate.sample.num_tokens,
        "seconds": {measured.name: list(measured.seconds.values) for measured in comparison.measured},
        "part_seconds": {measured.name: _parts(measured) for measured in (base, candidate)},
        "phases": {measured.name: _phases(measured) for measured in (base, candidate)},
        "steps": {measured.name: _steps(measured) for measured in (base, candidate)},
        "repeatable": all(sample.tokens == candidate.sample.tokens for sample in candidate.samples),
        "texts": _texts(candidate, base),
    }


def _parts(measured: Measured) -> list[list[float]]:
    """Seconds of every part, repeat by repeat."""
    return [list(parts) for parts in measured.part_seconds]


def _phases(measured: Measured) -> list[list[float]] | None:
    taken = [sample.phases for sample in measured.samples]
    return [list(phases) for phases in taken if phases is not None] if None not in taken else None


def _steps(measured: Measured) -> int | None:
    summary = measured.sample.summary
    return None if summary is None else summary.steps


def _texts(candidate: Measured, base: Measured) -> list[dict[str, object]]:
    texts = candidate.sample.texts or [None] * len(candidate.sample.tokens)
    return [
        {
            "num_tokens": len(tokens),
            "distinct": distinct_share(tokens),
            "looping": is_looping(tokens),
            "first_difference": first_difference(tokens, reference),
            "counts": None if counts is None else asdict(counts),
        }
        for tokens, reference, counts in zip(candidate.sample.tokens, base.sample.tokens, texts, strict=True)
    ]
