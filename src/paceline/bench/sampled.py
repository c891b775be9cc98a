"""Sampling beside greedy decoding, at equal tokens per step. Pure: reads no file and measures nothing.

Sampled texts are others, so that drafts fare differently there. What sampling itself costs is how fast steps follow
each other: steps per second at a temperature over those of greedy decoding, which is the ratio of tokens per second if
both had the same tokens per step. Only cells that took turns in one run are compared.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from paceline.bench.figures import attempts_by, label_of
from paceline.bench.raw import CELL, Record
from paceline.bench.statistics import Estimate, estimate, paired_ratios
from paceline.bench.sweep import CANDIDATE, Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledFigures:
    """One of our own ways to decode at a temperature above 0, beside itself at temperature 0."""

    run: str
    label: str  # the run in words: precision and threads
    suite: str
    cell: Cell
    void: bool
    ratio: Estimate  # steps per second over those of greedy decoding, paired
    tokens_per_step: float
    greedy_tokens_per_step: float


def sampled_figures_of(records: Iterable[Record]) -> list[SampledFigures]:
    """A line for every cell at a temperature above 0 that a greedy one of ours took turns with.

    Raises ValueError for a cell whose run is described nowhere in the file.
    """
    taken = attempts_by(records, CELL, lambda record: Cell(**record["cell"]))
    last = {(run, cell): (conditions, attempts[-1]) for run, cell, conditions, attempts in taken}
    lines: list[SampledFigures] = []
    for (run, cell), (conditions, record) in last.items():
        _, greedy = last.get((run, replace(cell, temperature=0.0, top_p=1.0)), (conditions, record))
        together = record.get("together")
        pair = [_decoding(record), _decoding(greedy)]
        if greedy is record or together is None or together != greedy.get("together") or not all(pair):
            continue
        own, other = (
            [seconds / found["steps"][CANDIDATE] for seconds in taken]
            for taken, found in zip(pair, (record, greedy), strict=True)
        )
        lines.append(
            SampledFigures(
                run=run,
                label=label_of(conditions, record),
                suite=conditions["suite"],
                cell=cell,
                void=record["void"],
                ratio=estimate(paired_ratios(other, own)),
                tokens_per_step=record["num_tokens"] / record["steps"][CANDIDATE],
                greedy_tokens_per_step=greedy["num_tokens"] / greedy["steps"][CANDIDATE],
            )
        )
    return lines


def _decoding(record: Record) -> Sequence[float]:
    """Seconds of its steps, repeat by repeat; none where they were not timed or counted."""
    return (record.get("decode_seconds", {}).get(CANDIDATE) or ()) if record["steps"][CANDIDATE] else ()
