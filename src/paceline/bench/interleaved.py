"""All cells of one batch size and length in one alternating run: everything is paired with everything.

Each repeat runs each side once: plain decoding, the cells, and plain decoding again as the control. Every temperature
has a plain side and a control of its own, on every instruction set. A third of the time that cells one by one take, and
the best of two parties compare without another run. Knows nothing of what the sides are; decides no best.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from paceline.bench.raw import RawFile, Record
from paceline.bench.record import record_of, rests_of
from paceline.bench.runner import Configuration, DecodingFailed, compare
from paceline.bench.statistics import is_void
from paceline.bench.sweep import (
    CANDIDATE,
    CONTROL,
    PLAIN,
    Axes,
    Cell,
    Protocols,
    Workbench,
    attempts_of,
    begin_run,
    describe_sampling,
    failure_of,
    is_settled,
)

MOST_OPEN = 8  # programs of peers at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Cells that take turns, our plain decoding among them; all of one batch size and length."""

    cells: tuple[Cell, ...]

    def __str__(self) -> str:
        return f"batch {self.cells[0].batch_size}, {self.cells[0].max_tokens} tokens"


def plain_cell(cell: Cell) -> Cell:
    """Our plain decoding beside ``cell``. Its record has the control as its candidate."""
    return replace(cell, drafter=PLAIN, num_draft_tokens=0)


def groups_of(cells: Iterable[Cell]) -> list[Group]:
    """The cells by batch size and length, in the order of their first ones."""
    found: dict[tuple[int, int], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.batch_size, cell.max_tokens), []).append(cell)
    return [Group(cells=tuple(dict.fromkeys([*map(plain_cell, group), *group]))) for group in found.values()]


def check_programs(axes: Axes) -> None:
    """Raise ValueError where a group would hold more than MOST_OPEN programs of peers open at once."""
    programs = {way for peer in axes.peers if peer.programs for way in (peer.plain, *peer.drafting)}
    for group in groups_of(axes.cells()):
        found = {(cell.drafter, cell.num_draft_tokens) for cell in group.cells if cell.drafter in programs}
        if len(found) > MOST_OPEN:
            raise ValueError(
                f"--together at batch {group.cells[0].batch_size}: {len(found)} programs of peers would be open at "
                f"once, and {MOST_OPEN} may be; choose with --peer-k, such as vllm-draft=3,5 or vllm-lookup=none"
            )


def run_interleaved(
    cells: Sequence[Cell],
    *,
    workbench: Workbench,
    raw: RawFile,
    conditions: Record,
    notes: Record,
    protocol: Protocols,
    close: Callable[[], None],
    clock: Callable[[], float] = time.perf_counter,
    progress: Callable[[Group, int, str], None] = lambda *_: None,
    beside: Callable[[], Mapping[str, float]] | None = None,
) -> str:
    """Measure what ``raw`` lacks of ``cells``, group by group; the fingerprint of the run.

    A group has more repeats while its controls fail, up to ``protocol.attempts`` times as many, all of which count, and
    is written down whole, with the number of the run in the file. Cells that cannot run are written down as such, and
    the others go on. ``close`` ends what a group has opened. Otherwise as ``sweep.run_sweep``.
    """
    run = begin_run(raw, conditions=conditions, notes=notes, protocol=protocol)
    for done, group in enumerate(groups_of(cells)):
        try:
            lacking = _lacking(group, raw.records, run, protocol)
            if any(cell.drafter != PLAIN for cell in lacking):
                say = partial(progress, group, done)
                measured, failures = _time_group(
                    lacking, workbench=workbench, protocol=protocol, clock=clock, progress=say, beside=beside
                )
                number = 1 + max((record.get("interleaved") or 0 for record in raw.records), default=0)
                raw.append(
                    *(failure_of(run, cell, message) for cell, message in failures.items()),
                    *(
                        {"run": run, **cell.identity(), "interleaved": number, "attempt": attempt, **record}
                        for cell, record in measured.items()
                        for attempt in [attempts_of(raw.records, run, cell)]
                    ),
                )
        finally:
            close()
    return run


def _time_group(
    cells: Sequence[Cell],
    *,
    workbench: Workbench,
    protocol: Protocols,
    clock: Callable[[], float],
    progress: Callable[[str], None],
    beside: Callable[[], Mapping[str, float]] | None,
) -> tuple[dict[Cell, Record], dict[Cell, str]]:
    """One run of a group's sides: what was measured of each cell, and what the others said when they failed."""
    named = {_name(cell): cell for cell in cells if cell.drafter != PLAIN}
    plain = list(dict.fromkeys(map(plain_cell, cells)))
    controls = {_name(cell): _name(cell, again=True) for cell in plain}
    failures: dict[Cell, str] = {}
    start_seconds: dict[str, float] = {}

    def make(name: str) -> Configuration | None:
        """The side of a cell; none where it does not start."""
        progress(f"starting {name}")
        begin = clock()
        try:
            return workbench.candidate(name, named[name])
        except DecodingFailed as error:
            fail(name, error)
            return None
        finally:
            start_seconds[name] = clock() - begin

    def fail(name: str, error: DecodingFailed) -> None:
        if name not in named:
            raise error
        failures[named[name]] = str(error)

    def lacks(turns: Sequence[Mapping[str, float]]) -> bool:
        """Whether a control fails, and there are repeats left."""
        pairs = ([turn[one] / turn[again] for turn in turns] for one, again in controls.items())
        return len(turns) < protocol.repeats * protocol.attempts and any(map(is_void, pairs))

    candidates = [side for name in named if (side := make(name)) is not None]
    begin = clock()
    comparison = compare(
        [
            *(workbench.plain(_name(cell), cell) for cell in plain),
            *candidates,
            *(workbench.plain(_name(cell, again=True), cell) for cell in plain),
        ],
        baseline=_name(plain[0]),
        repeats=protocol.repeats,
        warm_up=protocol.warm_up,
        clock=clock,
        progress=progress,
        beside=beside,
        failed=fail,
        lacks=lacks,
    )
    seconds = clock() - begin  # of the whole group
    measured = {one.name: one for one in comparison.measured}
    found: dict[Cell, Record] = {}
    for cell in (*plain, *named.values()):
        base = _name(plain_cell(cell))
        own = controls.get(_name(cell), _name(cell))  # plain decoding has its control as the candidate
        if own in measured:
            sides = {PLAIN: measured[base], CANDIDATE: measured[own], CONTROL: measured[controls[base]]}
            found[cell] = {
                **record_of(sides, comparison),
                "rests": rests_of(sides[CANDIDATE], sides[PLAIN]),
                "start_seconds": start_seconds.get(own, 0.0),
                "timing_seconds": seconds,
            }
    void = any(record["void"] for record in found.values())
    return {cell: {**record, "void": void} for cell, record in found.items() if cell in set(cells)}, failures


def _lacking(group: Group, records: Sequence[Record], run: str, protocol: Protocols) -> list[Cell]:
    return [
        cell
        for cell in group.cells
        if _repeats_of(records, run, cell) < protocol.repeats * protocol.attempts and not is_settled(records, run, cell)
    ]


def _repeats_of(records: Sequence[Record], run: str, cell: Cell) -> int:
    """The most repeats that the cell has had in one interleaved run."""
    wanted = {"run": run, **cell.identity()}
    found = (record for record in records if wanted.items() <= record.items() and "seconds" in record)
    return max((len(record["seconds"][CONTROL]) for record in found), default=0)


def _name(cell: Cell, *, again: bool = False) -> str:
    return f"{cell.way}, {describe_sampling(cell.temperature, cell.top_p)}" + (", again" if again else "")
