"""The parts of the report that the two audits share."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.audit.goodness_of_fit import GoodnessOfFit


def new_table() -> Table:
    """One line per check."""
    return Table("check", "found", "expected", "", box=None, padding=(0, 2, 0, 0))


def add_distribution_tests(table: Table, fit: GoodnessOfFit) -> None:
    """The three tests of sampled tokens."""
    table.add_row(
        f"surprisal of {fit.num_tokens:,} sampled tokens, nats",
        f"{fit.nll:.4f}",
        f"{fit.entropy:.4f} +- {fit.half_width:.4f}",
        show_p(fit.nll_p_value),
    )
    table.add_row("  Kolmogorov-Smirnov distance", f"{fit.ks_statistic:.4f}", "", show_p(fit.ks_p_value))
    table.add_row("  frequency of the most likely tokens", "", "", show_p(fit.rank_p_value))


def show_p(p: float) -> str:
    """A p-value, under the hypothesis of correct samples."""
    return f"p = {p:.3f}" if p >= 0.001 else f"p = {p:.1e}"


def print_conclusion(console: Console, failures: Sequence[str]) -> None:
    """The failures, or that there are none."""
    for failure in failures:
        console.print(Text(f"FAILED: {failure}", "bold red"))
    if not failures:
        console.print(Text("all tests passed", "bold green"))
