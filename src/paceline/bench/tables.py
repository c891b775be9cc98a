"""Figures as tables on a terminal and as CSV. Measures and computes nothing."""

import csv
import io
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from paceline.bench.figures import PHASES, Figures, Group, best, break_evens, grid

COLUMNS = (
    "run",
    "label",
    "suite",
    "drafter",
    "num_draft_tokens",
    "batch_size",
    "temperature",
    "max_tokens",
    "void",
    "attempts",
    "control",
    "speedup",
    "speedup_low",
    "speedup_high",
    "tokens_per_second",
    "plain_tokens_per_second",
    "tokens_per_step",
    "accepted_per_step",
    "acceptance",
    "acceptance_by_position",
    "ideal",
    "efficiency",
    *(f"{phase}_ms" for phase in PHASES),
    "plain_target_ms",
    "num_texts",
    "num_looping",
    "num_different",
    "first_difference",
)


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


def to_csv(figures: Sequence[Figures]) -> str:
    """COLUMNS of every cell; empty where there is no figure. Times are there for void cells too, marked as such."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for line in figures:
        cell = line.cell
        step = line.step_seconds or (None,) * len(PHASES)
        row = (
            line.run,
            line.label,
            line.suite,
            cell.drafter,
            cell.num_draft_tokens,
            cell.batch_size,
            cell.temperature,
            cell.max_tokens,
            line.void,
            line.attempts,
            line.control,
            line.speedup.value,
            line.speedup.low,
            line.speedup.high,
            line.tokens_per_second,
            line.plain_tokens_per_second,
            line.tokens_per_step,
            line.accepted_per_step,
            line.acceptance,
            " ".join(f"{rate:.4f}" for rate in line.by_position),
            line.ideal,
            line.efficiency,
            *(None if seconds is None else 1e3 * seconds for seconds in step),
            1e3 * line.plain_step_seconds[1] if line.plain_step_seconds else None,
            line.num_texts,
            line.num_looping,
            line.num_different,
            line.first_difference,
        )
        writer.writerow(f"{value:.6g}" if isinstance(value, float) else value for value in row)
    return text.getvalue()


def number(value: float | None) -> str:
    """Two digits after the point, or a dash."""
    return "-" if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    """A share in percent, or a dash."""
    return "-" if value is None else f"{value:.0%}"
