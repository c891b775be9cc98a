"""Times both ways of every cell in turn and keeps what was found as records. Knows nothing of tables."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

from benchmarks.resume.cases import AGAIN, DRAFTED, PLAIN, RESUMED, Cell, Prepared
from benchmarks.scaling.measure import has
from paceline.bench.raw import RESUME, RawFile, Record
from paceline.bench.statistics import is_void, paired_ratios
from paceline.bench.timing import time_in_turn
from paceline.models.native.decoder import DecoderLM

WARM_UP = 2
Progress = Callable[[str], None]


def measure_cells(
    cells: Sequence[Cell], *, target: DecoderLM, raw: RawFile, run: str, num_steps: int, say: Progress
) -> None:
    """Put into ``raw`` what it lacks of ``cells``: seconds of ``num_steps`` steps of every way, step by step in turn.

    Raises ValueError for fewer steps than 1, and RuntimeError where what was drafted is not what the target says.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps={num_steps}: give at least 1")
    for number, cell in enumerate(cells, start=1):
        identity: Record = {"kind": RESUME, "run": run, "cell": asdict(cell)}
        if has(raw, identity):
            continue
        say(f"{cell.name} ({number} of {len(cells)})")
        prepared = Prepared(cell, target=target, num_steps=num_steps + WARM_UP)
        taken = time_in_turn(
            {name: partial(prepared.step, name) for name in (*DRAFTED, PLAIN)},
            repeats=num_steps,
            seconds=0.0,
            warm_up=WARM_UP,
        )
        if prepared.differ():
            raise RuntimeError(f"{cell.name}: drafted and plain steps wrote different texts; please report it")
        control = paired_ratios(taken[RESUMED], taken[AGAIN])
        raw.append(
            {
                **identity,
                "num_layers": target.num_layers,
                "void": is_void(control),
                "seconds": {name: list(values) for name, values in taken.items()},
            }
        )
