"""Times a step with every option and without, and keeps what was found as records. Knows nothing of tables."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

from benchmarks.sampling_cost.cases import GREEDY, SAMPLED, Cell, Prepared
from paceline.bench.raw import OPTIONS, RUN, RawFile, Record, fingerprint
from paceline.bench.statistics import is_void, paired_ratios
from paceline.bench.timing import time_in_turn

AGAIN = {GREEDY: f"{GREEDY}, again", SAMPLED: f"{SAMPLED}, again"}  # the controls

Progress = Callable[[str], None]
Prepare = Callable[[Cell], Prepared]


def begin(raw: RawFile, *, conditions: Record, notes: Callable[[], Record]) -> str:
    """The fingerprint of the run of these conditions, which is put into ``raw`` with its notes if it is not there."""
    run = fingerprint(conditions)
    if not any(record["kind"] == RUN and record["run"] == run for record in raw.records):
        raw.append({"kind": RUN, "run": run, "conditions": conditions, "notes": notes()})
    return run


def measure_cells(
    cells: Sequence[Cell],
    prepare: Prepare,
    *,
    raw: RawFile,
    run: str,
    repeats: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
    say: Progress = lambda _: None,
) -> None:
    """Put into ``raw`` what it lacks of ``cells``: seconds of a step for every option, all of them in turn.

    There are ``repeats`` at least, and more until a cell's took ``seconds``. The references are timed twice a turn.
    Raises ValueError for fewer repeats than 1 and less than no seconds.
    """
    if repeats < 1:
        raise ValueError(f"repeats={repeats}: give at least 1")
    if not seconds >= 0:
        raise ValueError(f"seconds={seconds}: give 0 or more")
    for number, cell in enumerate(cells, start=1):
        identity = {"kind": OPTIONS, "run": run, "rows": cell.num_rows, "k": cell.num_draft_tokens}
        if any(identity.items() <= record.items() for record in raw.records):
            continue
        say(f"{cell.name} ({number} of {len(cells)})")
        raw.append({**identity, **_measure(prepare(cell), repeats=repeats, seconds=seconds, clock=clock)})


def _measure(prepared: Prepared, *, repeats: int, seconds: float, clock: Callable[[], float]) -> Record:
    names = {**{name: name for name in prepared.options}, **{again: name for name, again in AGAIN.items()}}
    taken = time_in_turn(
        {name: prepared.step for name in names},
        before={name: partial(prepared.rewind, option) for name, option in names.items()},
        repeats=repeats,
        seconds=seconds,
        clock=clock,
    )
    controls = {name: median(paired_ratios(taken[name], taken[again])) for name, again in AGAIN.items()}
    return {
        "vocab": prepared.vocab_size,
        "logits_bytes": prepared.logits_bytes,
        "controls": controls,
        "void": is_void(list(controls.values())),
        "references": {name: option.reference for name, option in prepared.options.items() if option.reference},
        "common": [name for name, option in prepared.options.items() if option.reference and option.common],
        "seconds": {name: list(values) for name, values in taken.items()},
    }
