"""What the two audits print alike: the law of sampled tokens, and what speaks against what was asked."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.audit.goodness_of_fit import GoodnessOfFit


def new_table() -> Table:
    """One line per check."""
    return Table("check", "found", "expected", "", box=None, padding=(0, 2, 0, 0))


def add_law(table: Table, law: GoodnessOfFit) -> None:
    """The three tests of sampled tokens."""
    table.add_row(
        f"surprise of {law.num_tokens:,} sampled tokens, nats",
        f"{law.nll:.4f}",
        f"{law.entropy:.4f} +- {law.half_width:.4f}",
        mark(law.nll_p_value),
    )
    table.add_row("  their places in the law, distance", f"{law.ks_statistic:.4f}", "", mark(law.ks_p_value))
    table.add_row("  how often the likeliest were drawn", "", "", mark(law.rank_p_value))


def mark(p: float) -> str:
    """How likely so much is if the tokens fit."""
    return f"p = {p:.3f}" if p >= 0.001 else f"p = {p:.1e}"


def say(console: Console, failures: Sequence[str]) -> None:
    """The end of an audit."""
    for failure in failures:
        console.print(Text(f"FAILED: {failure}", "bold red"))
    if not failures:
        console.print(Text("nothing speaks against it", "bold green"))
