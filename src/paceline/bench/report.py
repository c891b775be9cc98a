"""Comparisons as tables. Measures nothing."""

from rich.box import SIMPLE_HEAD
from rich.table import Table

from paceline.bench.runner import Comparison


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
