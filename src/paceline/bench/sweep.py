"""Every combination of drafter, draft length, batch size, temperature and length, measured and kept. Draws no figure.

A task is what is timed at once: a base, which runs twice as a control, and a candidate. Its raw figures are appended to
a file as soon as they are there; what the file holds is not measured again. A cell is one combination, and its base is
plain decoding. Other tasks (bench/head_to_head) are run alike.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from typing import Protocol, TypeAlias, TypeVar

from paceline.bench.raw import CELL, FAILURE, RawFile, Record
from paceline.bench.record import record_of
from paceline.bench.runner import Configuration, DecodingFailed, compare

PLAIN, CONTROL, CANDIDATE = "plain", "control", "candidate"
OURS, OTHER = "ours", "other"  # the sides of a head-to-head comparison
Sides: TypeAlias = tuple[Configuration, Configuration, Configuration]  # a base, a candidate, the base again


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One combination; ``num_draft_tokens`` is 0 for what drafts nothing.

    ``isa`` is the instruction set that it and the plain decoding beside it run on; None is the process's own choice.
    """

    drafter: str
    num_draft_tokens: int
    batch_size: int
    temperature: float
    max_tokens: int
    top_p: float = 1.0
    isa: str | None = None

    def __str__(self) -> str:
        return f"{self.way}, batch {self.batch_size}, {describe_sampling(self.temperature, self.top_p)}"

    @property
    def method(self) -> str:
        """The drafter, and its instruction set if one was named."""
        return self.drafter + on_set(self.isa)

    @property
    def way(self) -> str:
        """The drafter and its draft length, and its instruction set if one was named."""
        count = f" k={self.num_draft_tokens}" if self.num_draft_tokens else ""
        return f"{self.drafter}{count}{on_set(self.isa)}"

    def as_record(self) -> Record:
        """Its fields, without the set where none was named: older files have none."""
        return {name: value for name, value in asdict(self).items() if name != "isa" or value is not None}

    def identity(self) -> Record:
        """The fields of its records that no other task's have."""
        return {"kind": CELL, "cell": self.as_record()}

    def sides(self, workbench: "Workbench") -> Sides:
        """Its own decoding against plain decoding."""
        return (
            workbench.plain(PLAIN, self),
            workbench.candidate(CANDIDATE, self),
            workbench.plain(CONTROL, self),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """How one peer decodes: ``plain`` without a draft, ``drafting`` with one, in ``batches`` or for one text alone.

    ``plain`` is the peer's own name too. With ``programs`` each way and draft length is a program to be started.
    """

    plain: str
    drafting: tuple[str, ...]
    batches: bool
    programs: bool = False

    def drafting_at(self, batch_size: int) -> tuple[str, ...]:
        """Those that there are for so many texts at once."""
        return self.drafting if self.batches or batch_size == 1 else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """What is combined: our ``drafters`` and all ways of our ``peers`` with everything else.

    ``trees`` are drafters that are tried with one depth alone, as pairs of name and depth: trees, and those that choose
    their lengths, up to that depth. ``peer_counts`` has the
    draft lengths of a peer's way, or of all ways of a peer, where they are not ``num_draft_tokens``; none leaves a way
    out. ``top_p`` is that of the temperatures above 0. ``isas`` are the instruction sets that our drafters are tried
    on; peers run on one alone.
    """

    drafters: Sequence[str]
    num_draft_tokens: Sequence[int]
    batch_sizes: Sequence[int]
    temperatures: Sequence[float]
    max_tokens: Sequence[int]
    peers: Sequence[Ways] = ()
    top_p: float = 1.0
    trees: Sequence[tuple[str, int]] = ()
    peer_counts: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    isas: Sequence[str] = ()

    @property
    def only_isa(self) -> str | None:
        """The one set that everything runs on; None where none was named, or several."""
        return self.isas[0] if len(self.isas) == 1 else None

    @property
    def our_drafters(self) -> tuple[str, ...]:
        """All drafters of ours."""
        return (*self.drafters, *(name for name, _ in self.trees))

    @property
    def samplings(self) -> list[tuple[float, float]]:
        """Pairs of temperature and top-p: greedy decoding has no use for the second."""
        return [(temperature, self.top_p if temperature > 0 else 1.0) for temperature in self.temperatures]

    def counts_of(self, peer: Ways, way: str) -> Sequence[int]:
        """Draft lengths that one of a peer's ways is timed with."""
        return self.peer_counts.get(way, self.peer_counts.get(peer.plain, self.num_draft_tokens))

    def drafting(self, peer: Ways, batch_size: int) -> tuple[str, ...]:
        """The ways that a peer drafts in here."""
        return tuple(way for way in peer.drafting_at(batch_size) if self.counts_of(peer, way))

    def cells(self) -> list[Cell]:
        """All combinations that there are, those of a drafter together."""
        return list(self._cells())

    def _cells(self) -> Iterator[Cell]:
        for (temperature, top_p), max_tokens, batch in product(self.samplings, self.max_tokens, self.batch_sizes):
            for drafter, count, isa in self._decodings(batch):
                yield Cell(
                    drafter=drafter,
                    num_draft_tokens=count,
                    batch_size=batch,
                    temperature=temperature,
                    max_tokens=max_tokens,
                    top_p=top_p,
                    isa=isa,
                )

    def _decodings(self, batch: int) -> Iterator[tuple[str, int, str | None]]:
        for isa in self.isas or (None,):
            for drafter, count in (*product(self.drafters, self.num_draft_tokens), *self.trees):
                yield drafter, count, isa
        for peer in self.peers:
            yield peer.plain, 0, self.only_isa
            for way in self.drafting(peer, batch):
                for count in self.counts_of(peer, way):
                    yield way, count, self.only_isa


def on_set(isa: str | None) -> str:
    """An instruction set in words, behind a name; nothing where none was named."""
    return "" if isa is None else f" on {isa}"


def describe_sampling(temperature: float, top_p: float) -> str:
    """In words; top-p only where it is one."""
    return f"temperature {temperature:g}" + (f", top-p {top_p:g}" if top_p < 1 else "")


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
    return raw.begin(whole, lambda: notes)


def run_sweep(
    tasks: Sequence[T],
    *,
    workbench: Workbench,
    raw: RawFile,
    conditions: Record,
    notes: Record,
    protocol: Protocols,
    clock: Callable[[], float] = time.perf_counter,
    progress: Callable[[T, int, str], None] = lambda *_: None,
    beside: Callable[[], Mapping[str, float]] | None = None,
) -> str:
    """Measure what ``raw`` lacks of ``tasks``; the fingerprint of the run.

    ``conditions`` must be equal for figures to belong together; ``notes`` (the date, say) need not. ``progress`` is
    given the task, how many are done, and what happens. ``beside`` measures the machine, once in every repeat. A task
    with a side that fails is written down as such, and the others go on. Raises ValueError for unequal token counts.
    """
    run = begin_run(raw, conditions=conditions, notes=notes, protocol=protocol)
    for done, task in enumerate(tasks):
        for attempt in range(attempts_of(raw.records, run, task), protocol.attempts):
            if is_settled(raw.records, run, task):
                break
            say = partial(progress, task, done)
            say("loading")
            begin = clock()
            try:
                sides = task.sides(workbench)
                started = clock()
                comparison = compare(
                    sides,
                    baseline=sides[0].name,
                    repeats=protocol.repeats,
                    warm_up=protocol.warm_up,
                    clock=clock,
                    progress=say,
                    beside=beside,
                )
            except DecodingFailed as error:
                raw.append(failure_of(run, task, str(error)))
                break
            found = record_of({side.name: comparison[side.name] for side in sides}, comparison)
            seconds = {"start_seconds": started - begin, "timing_seconds": clock() - started}
            raw.append({"run": run, **task.identity(), "attempt": attempt, **found, **seconds})
    return run


def failure_of(run: str, task: Task, message: str) -> Record:
    """That a task could not be timed."""
    return {"kind": FAILURE, "run": run, "task": task.identity(), "message": message}


def attempts_of(records: Sequence[Record], run: str, task: Task) -> int:
    """How often a task was measured."""
    return len(_measured(records, run, task))


def is_settled(records: Sequence[Record], run: str, task: Task) -> bool:
    """Whether a task was measured and its control held."""
    return any(not record["void"] for record in _measured(records, run, task))


def _measured(records: Sequence[Record], run: str, task: Task) -> list[Record]:
    wanted = {"run": run, **task.identity()}.items()
    return [record for record in records if wanted <= record.items()]
