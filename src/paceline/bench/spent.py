"""How long a file of raw figures took: timing, and starting what was timed. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from paceline.bench.raw import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds, of all attempts that were finished."""

    timing: float  # from the first warm-up to the last repeat of every run
    starting: float  # loading models for, and starting, what was timed


def spent_on(records: Iterable[Record]) -> Spent:
    """Of all runs in the file; those whose records do not say it count nothing."""
    timing: dict[object, float] = {}
    starting = 0.0
    for at, record in enumerate(records):
        if "timing_seconds" in record:
            together = record.get("together")
            timing[at if together is None else (record["run"], together)] = record["timing_seconds"]
            starting += record["start_seconds"]
    return Spent(timing=sum(timing.values()), starting=starting)
