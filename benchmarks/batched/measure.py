"""Times all ways of every cell in turn and keeps what was found as records. Knows nothing of tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.batched.cases import AGAIN, KERNEL, PER_ROW, Cell, Way, prepare
from benchmarks.scaling.measure import Timing, has
from paceline.api import Loaded
from paceline.bench.raw import BATCHED, RawFile, Record
from paceline.bench.statistics import is_void, paired_ratios
from paceline.bench.timing import time_in_turn
from paceline.core.stats import Summary

Progress = Callable[[str], None]


def lacking(cells: Sequence[Cell], *, raw: RawFile, run: str) -> list[Cell]:
    """Those of ``cells`` that ``raw`` does not hold of a quiet machine."""
    return [cell for cell in cells if not has(raw, _identity(cell, run))]


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
    """Put into ``raw``, of each of ``cells``, the seconds of whole batches by every way, batch by batch in turn.

    A batch takes the prompts that come next. Raises ValueError for what ``prepare`` refuses, and RuntimeError where the
    kernel, whose numbers depend on no company, wrote differently in two ways.
    """
    for number, cell in enumerate(cells, start=1):
        say(f"{cell.name} ({number} of {len(cells)})")
        ways = prepare(cell, target=target, draft=draft, prompts=prompts, num_tokens=num_tokens, clock=timing.clock)
        taken = time_in_turn(
            {name: way.decode for name, way in ways.items()},
            before={name: way.begin for name, way in ways.items()},
            repeats=timing.repeats,
            seconds=timing.seconds,
            clock=timing.clock,
            warm_up=0,
        )
        found = {name: _found(way, ways[PER_ROW], taken[name]) for name, way in ways.items()}
        if cell.runtime == KERNEL and any(way["same"] < found[PER_ROW]["same"] for way in found.values()):
            raise RuntimeError(f"{cell.name}: two ways wrote different texts; please report it")
        control = paired_ratios(taken[PER_ROW], taken[AGAIN])
        raw.append({**_identity(cell, run), "void": is_void(control), "ways": found})


def _identity(cell: Cell, run: str) -> Record:
    return {"kind": BATCHED, "run": run, "cell": asdict(cell)}


def _found(way: Way, base: Way, seconds: Sequence[float]) -> Mapping[str, Any]:
    own, others = ([text for done in some.done for text in done.texts] for some in (way, base))
    none = Summary.empty(way.decoder.batch.max_depth)
    return {
        "seconds": list(seconds),
        "aligning": [done.aligning for done in way.done],
        "num_steps": [done.num_steps for done in way.done],
        "same": sum(one == other for one, other in zip(own, others, strict=True)),  # texts as decoded per row
        "summary": asdict(sum((done.summary for done in way.done), none)),
    }
