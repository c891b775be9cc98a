"""Figures as tables on a terminal. Measures and computes nothing."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from paceline.bench.categories import CategoryFigures
from paceline.bench.figures import Figures, Group, best, break_evens, grid
from paceline.bench.head_to_head import DuelFigures
from paceline.bench.sampled import SampledFigures
from paceline.bench.sweep import describe_sampling


def sweep_tables(figures: Sequence[Figures]) -> list[Table]:
    """For all that was timed alike, one line per cell: speed with its 95 % interval, and beside it what happened."""
    groups: dict[Group, list[Figures]] = {}
    for line in figures:
        groups.setdefault(line.group, []).append(line)
    return [_sweep_table(group, lines) for group, lines in groups.items()]


def _sweep_table(group: Group, lines: Sequence[Figures]) -> Table:
    table = Table(title=describe_group(group), title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("drafter", overflow="fold", min_width=13)
    for name in ("k", "batch", "speed-up 95 %", "tokens/s", "decode", "limit", "/step", "accept", "differ"):
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
            "-" if line.void else whole(line.decoding_tokens_per_second),
            "-" if line.void else percent(line.of_limit),
            number(line.tokens_per_step),
            percent(line.acceptance),
            f"{line.num_different}/{line.num_texts}",
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
    for (label, _, temperature, _, max_tokens), drafter, count, crossing in found:
        table.add_row(label, f"{temperature:g}", str(max_tokens), drafter, str(count), str(crossing))
    return table


def grid_table(figures: Sequence[Figures]) -> Table | None:
    """The field's classic grid; None where no draft length was timed over several lengths of text."""
    lines = grid(figures)
    if not lines:
        return None
    table = Table(title="means over lengths of text", title_justify="left", box=SIMPLE_HEAD)
    for name in ("precision", "temp", "batch", "drafter", "tokens", "gamma", "speed-up", "tokens/s"):
        table.add_column(name, justify="left" if name in ("precision", "drafter") else "right", overflow="fold")
    for line in lines:
        table.add_row(
            line.label,
            f"{line.temperature:g}",
            str(line.batch_size),
            line.drafter,
            ", ".join(map(str, line.max_tokens)),
            str(line.num_draft_tokens),
            f"{line.speedup:.2f}",
            f"{line.tokens_per_second:.1f}",
        )
    return table


def duel_tables(lines: Sequence[DuelFigures]) -> list[Table]:
    """For all that was timed alike, the sides that were timed against each other directly."""
    groups: dict[Group, list[DuelFigures]] = {}
    for line in lines:
        groups.setdefault(line.group, []).append(line)
    return [_duel_table(group, found) for group, found in groups.items()]


def _duel_table(group: Group, lines: Sequence[DuelFigures]) -> Table:
    table = _table(f"best against best, {describe_group(group)}; above 1 ours is faster")
    for name in ("batch", "ours", "other", "ratio 95 %", "tokens/s", "differ"):
        folds = name in ("ours", "other")
        table.add_column(name, justify="left" if folds else "right", overflow="fold", no_wrap=not folds)
    for line in lines:
        ratio = line.ratio
        table.add_row(
            str(line.duel.own.batch_size),
            line.duel.own.way,
            line.duel.other.way,
            f"void, A/A {line.control:.2f}" if line.void else f"{ratio.value:.2f} {ratio.low:.2f}-{ratio.high:.2f}",
            "-" if line.void else f"{line.tokens_per_second:.0f} : {line.other_tokens_per_second:.0f}",
            f"{line.num_different}/{line.num_texts}",
        )
    return table


def category_tables(lines: Sequence[CategoryFigures]) -> list[Table]:
    """For all that was timed alike, a line for every category."""
    groups: dict[Group, list[CategoryFigures]] = {}
    for line in lines:
        groups.setdefault(line.group, []).append(line)
    return [_category_table(group, found) for group, found in groups.items()]


def _category_table(group: Group, lines: Sequence[CategoryFigures]) -> Table:
    table = _table(f"by category, each drafter at its best k, {describe_group(group)}")
    for name in ("batch", "drafter", "category", "speed-up 95 %", "/step", "accept", "texts"):
        folds = name in ("drafter", "category")
        table.add_column(name, justify="left" if folds else "right", overflow="fold", no_wrap=not folds)
    for line in lines:
        speedup = line.speedup
        table.add_row(
            str(line.cell.batch_size),
            line.cell.way,
            line.category,
            "-" if speedup is None else f"{speedup.value:.2f} {speedup.low:.2f}-{speedup.high:.2f}",
            number(line.tokens_per_step),
            percent(line.acceptance),
            str(line.num_texts),
        )
    return table


def sampled_table(lines: Sequence[SampledFigures]) -> Table | None:
    """What sampling costs beside greedy decoding; None where nothing was timed so."""
    if not lines:
        return None
    table = _table("sampling beside greedy decoding: steps per second over its, in one run")
    for name in ("sampling", "tokens", "batch", "drafter", "ratio 95 %", "/step", "greedy's"):
        folds = name in ("sampling", "drafter")
        table.add_column(name, justify="left" if folds else "right", overflow="fold", no_wrap=not folds)
    for line in lines:
        ratio = line.ratio
        table.add_row(
            describe_sampling(line.cell.temperature, line.cell.top_p),
            str(line.cell.max_tokens),
            str(line.cell.batch_size),
            line.cell.way,
            "void" if line.void else f"{ratio.value:.3f} {ratio.low:.3f}-{ratio.high:.3f}",
            number(line.tokens_per_step),
            number(line.greedy_tokens_per_step),
        )
    return table


def describe_group(group: Group) -> str:
    """A group in words."""
    label, suite, temperature, top_p, max_tokens = group
    return f"{label}, {suite}, {describe_sampling(temperature, top_p)}, {max_tokens} tokens"


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 2, 0, 0))


def number(value: float | None) -> str:
    """Two digits after the point, or a dash."""
    return "-" if value is None else f"{value:.2f}"


def whole(value: float | None) -> str:
    """No digits after the point, or a dash."""
    return "-" if value is None else f"{value:.0f}"


def percent(value: float | None) -> str:
    """A share in percent, or a dash."""
    return "-" if value is None else f"{value:.0%}"
