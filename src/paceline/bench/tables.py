"""Figures as tables on a terminal. Measures and computes nothing."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from paceline.bench.categories import CategoryFigures
from paceline.bench.duels import DuelFigures
from paceline.bench.figures import Figures, Group, best, break_evens, grid

DUELS = "best against best: each pair timed directly; above 1 ours is faster"
CATEGORIES = "by category, each drafter at its best k"


def sweep_tables(figures: Sequence[Figures]) -> list[Table]:
    """For all that was timed alike, one line per cell: speed with its 95 % interval, and beside it what happened."""
    groups: dict[Group, list[Figures]] = {}
    for line in figures:
        groups.setdefault(line.group, []).append(line)
    return [_sweep_table(group, lines) for group, lines in groups.items()]


def _sweep_table(group: Group, lines: Sequence[Figures]) -> Table:
    label, suite, temperature, max_tokens = group
    title = f"{label}, {suite}, temperature {temperature:g}, {max_tokens} tokens"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("drafter", overflow="fold", min_width=13)
    for name in ("k", "batch", "speed-up 95 %", "tokens/s", "/step", "accept", "effic.", "differ", "loop"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        cell, speedup = line.cell, line.speedup
        table.add_row(
            cell.drafter,
            str(cell.num_draft_tokens or "-"),
            str(cell.batch_size),
            f"void, A/A {line.control:.2f}"
            if line.void
            else f"{speedup.value:.2f} {speedup.low:.2f}-{speedup.high:.2f}",
            "-" if line.void else f"{line.tokens_per_second:.0f}",
            number(line.tokens_per_step),
            percent(line.acceptance),
            "-" if line.void else percent(line.efficiency),
            f"{line.num_different}/{line.num_texts}",
            f"{line.num_looping}/{line.num_texts}",
        )
    return table


def best_table(figures: Sequence[Figures]) -> Table | None:
    """Every drafter and peer at its best draft length; None where only one length was timed."""
    chosen = best(figures)
    if not chosen or len({line.cell.num_draft_tokens for line in figures if line.cell.num_draft_tokens}) < 2:
        return None
    table = Table(title="each at its best k", title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    for name in ("precision", "temp", "tokens", "batch", "drafter", "k", "speed-up 95 %", "tokens/s"):
        table.add_column(name, justify="left" if name in ("precision", "drafter") else "right", overflow="fold")
    for line in chosen:
        cell, speedup = line.cell, line.speedup
        table.add_row(
            line.label,
            f"{cell.temperature:g}",
            str(cell.max_tokens),
            str(cell.batch_size),
            cell.drafter,
            str(cell.num_draft_tokens or "-"),
            f"{speedup.value:.2f} {speedup.low:.2f}-{speedup.high:.2f}",
            f"{line.tokens_per_second:.0f}",
        )
    return table


def break_even_table(figures: Sequence[Figures]) -> Table | None:
    """Where drafting stops paying; None where nothing was timed at several batch sizes."""
    found = break_evens(figures)
    if not found:
        return None
    table = Table(title="batch size at which drafting stops paying", title_justify="left", box=SIMPLE_HEAD)
    for name in ("precision", "temp", "tokens", "drafter", "k", "break-even"):
        table.add_column(name, justify="left" if name in ("precision", "drafter") else "right")
    for (label, _, temperature, max_tokens), drafter, count, crossing in found:
        table.add_row(label, f"{temperature:g}", str(max_tokens), drafter, str(count), str(crossing))
    return table


def grid_table(figures: Sequence[Figures]) -> Table | None:
    """The field's classic grid; None where no draft length was timed over several lengths of text."""
    lines = grid(figures)
    if not lines:
        return None
    lengths = ", ".join(map(str, lines[0].max_tokens))
    table = Table(title=f"means over {lengths} tokens", title_justify="left", box=SIMPLE_HEAD)
    for name in ("precision", "drafter", "gamma", "speed-up", "tokens/s"):
        table.add_column(name, justify="left" if name in ("precision", "drafter") else "right")
    for line in lines:
        rate = f"{line.tokens_per_second:.1f}"
        table.add_row(line.label, line.drafter, str(line.num_draft_tokens), f"{line.speedup:.2f}", rate)
    return table


def duel_table(lines: Sequence[DuelFigures]) -> Table | None:
    """Sides that were timed against each other directly; None where none were."""
    if not lines:
        return None
    table = Table(title=DUELS, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    for name in ("precision", "temp", "tokens", "batch", "ours", "other", "ours/other 95 %", "tokens/s", "differ"):
        left = name in ("precision", "ours", "other")
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    for line in lines:
        own, ratio = line.duel.own, line.ratio
        rates = f"{line.tokens_per_second:.0f} : {line.other_tokens_per_second:.0f}"
        table.add_row(
            line.label,
            f"{own.temperature:g}",
            str(own.max_tokens),
            str(own.batch_size),
            own.way,
            line.duel.other.way,
            f"void, A/A {line.control:.2f}" if line.void else f"{ratio.value:.2f} {ratio.low:.2f}-{ratio.high:.2f}",
            "-" if line.void else rates,
            f"{line.num_different}/{line.num_texts}",
        )
    return table


def category_table(lines: Sequence[CategoryFigures]) -> Table | None:
    """Every category; None where the prompts have none."""
    if not lines:
        return None
    table = Table(title=CATEGORIES, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    names = ("precision", "temp", "tokens", "batch", "drafter", "category", "speed-up 95 %", "/step", "accept", "texts")
    for name in names:
        left = name in ("precision", "drafter", "category")
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    for line in lines:
        cell, speedup = line.cell, line.speedup
        table.add_row(
            line.label,
            f"{cell.temperature:g}",
            str(cell.max_tokens),
            str(cell.batch_size),
            cell.way,
            line.category,
            "-" if speedup is None else f"{speedup.value:.2f} {speedup.low:.2f}-{speedup.high:.2f}",
            number(line.tokens_per_step),
            percent(line.acceptance),
            str(line.num_texts),
        )
    return table


def number(value: float | None) -> str:
    """Two digits after the point, or a dash."""
    return "-" if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    """A share in percent, or a dash."""
    return "-" if value is None else f"{value:.0%}"
