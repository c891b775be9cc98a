"""How much of a draft the target keeps, counted without timing anything: every cell is decoded once."""

from collections.abc import Callable, Sequence

import torch

from paceline.bench.raw import ACCEPTANCE, RawFile, Record
from paceline.bench.record import texts_of
from paceline.bench.sweep import CANDIDATE, Cell, Workbench


def count_acceptance(
    cells: Sequence[Cell],
    *,
    workbench: Workbench,
    raw: RawFile,
    conditions: Record,
    notes: Record,
    progress: Callable[[Cell, int, str], None] = lambda *_: None,
) -> str:
    """Count what ``raw`` lacks of ``cells``; the fingerprint of the run.

    Nothing here depends on the clock: the same conditions give the same counts.
    """
    run = raw.begin(conditions, lambda: notes)
    for done, cell in enumerate(cells):
        identity = {"kind": ACCEPTANCE, "run": run, "cell": cell.as_record()}
        if raw.has(identity):
            continue
        progress(cell, done, "decoding")
        sample = workbench.candidate(CANDIDATE, cell).run()
        raw.append({**identity, "num_threads": torch.get_num_threads(), "texts": texts_of(sample)})
    return run
