"""Comparisons as tables and as JSON. Measures nothing."""

import json
from dataclasses import asdict

from rich.box import SIMPLE_HEAD
from rich.table import Table

from paceline.bench.machine import Machine
from paceline.bench.runner import Comparison, Measured, Spread


def make_table(comparison: Comparison, *, title: str | None = None) -> Table:
    """One line per configuration: median and spread over the repeats, then what happened in a step."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name in ("tokens/s (spread)", "tokens/step", "accepted", "speed-up (spread)"):
        table.add_column(name, justify="right", no_wrap=True)
    for measured in comparison.measured:
        rate, ratio, summary = measured.tokens_per_second, measured.speedup, measured.sample.summary
        drafted = 0 if summary is None else sum(summary.drafted)
        table.add_row(
            measured.name,
            f"{rate.median:.0f} ({rate.low:.0f}-{rate.high:.0f})",
            "-" if summary is None else f"{summary.mean_acceptance_length:.2f}",
            "-" if summary is None or not drafted else f"{summary.acceptance_rate:.0%}",
            "1" if measured.name == comparison.baseline else f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})",
        )
    return table


def to_json(comparison: Comparison, machine: Machine, *, settings: dict[str, object]) -> str:
    """Every figure of every repeat, with the machine and the ``settings`` it was taken with."""
    return json.dumps(
        {
            "machine": asdict(machine),
            "settings": settings,
            "baseline": comparison.baseline,
            "num_threads": comparison.num_threads,
            "configurations": [_record(measured) for measured in comparison.measured],
        },
        indent=2,
    )


def _record(measured: Measured) -> dict[str, object]:
    summary = measured.sample.summary
    counts = None
    if summary is not None:
        counts = {
            "steps": summary.steps,
            "emitted": summary.emitted,
            "drafted": summary.drafted,
            "accepted": summary.accepted,
            "acceptance_rate": summary.acceptance_rate,
            "first_acceptance": summary.first_acceptance,
            "mean_acceptance_length": summary.mean_acceptance_length,
        }
    return {
        "name": measured.name,
        "num_tokens": measured.sample.num_tokens,
        "identical_to_baseline": measured.identical,
        "num_looping": measured.num_looping,
        "seconds": _spread(measured.seconds),
        "tokens_per_second": _spread(measured.tokens_per_second),
        "speedup": _spread(measured.speedup),
        "stats": counts,
    }


def _spread(spread: Spread) -> dict[str, object]:
    return {"median": spread.median, "low": spread.low, "high": spread.high, "repeats": list(spread.values)}
