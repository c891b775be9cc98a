"""Reports beside a file of raw figures, made from it alone. Measures nothing."""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from paceline.bench.categories import at_best, category_figures_of
from paceline.bench.figures import figures_of
from paceline.bench.head_to_head import duel_figures_of
from paceline.bench.raw import Record, read_records
from paceline.bench.sampled import sampled_figures_of
from paceline.bench.spreadsheets import categories_to_csv, duels_to_csv, sampled_to_csv, to_csv
from paceline.bench.tables import (
    best_table,
    break_even_table,
    category_tables,
    duel_tables,
    grid_table,
    sampled_table,
    sweep_tables,
)


def check_drawing() -> None:
    """Raise ValueError where plots cannot be drawn."""
    if find_spec("matplotlib") is None:
        raise ValueError("the HTML report needs matplotlib: run pip install 'paceline[bench]', or give --no-html")


def run_command(run: Callable[[argparse.Namespace], None], given: argparse.Namespace, name: str) -> int:
    """``run`` with the options ``given``; the exit code, 2 where they cannot be had, which is said under ``name``."""
    try:
        run(given)
    except ValueError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    return 0


def print_tables(records: Sequence[Record], console: Console) -> None:
    """Every table that the figures give."""
    figures = figures_of(records)
    for table in (
        *sweep_tables(figures),
        *category_tables(at_best(category_figures_of(records), figures)),
        best_table(figures),
        break_even_table(figures),
        grid_table(figures),
        *duel_tables(duel_figures_of(records)),
        sampled_table(sampled_figures_of(records)),
    ):
        if table is not None:
            console.print(table)


def write_reports(path: Path, *, html: bool) -> list[Path]:
    """CSV, and HTML if wanted, beside the raw figures at ``path``; the files written.

    Duels, categories and what sampling costs have files of their own where there are any. Raises ValueError for a file
    that holds no figures, or no matplotlib with ``html``, before anything is written.
    """
    if html:
        check_drawing()
    records = read_records(path)
    texts = {path.with_suffix(".csv"): to_csv(figures_of(records))}
    if duels := duel_figures_of(records):
        texts[path.with_suffix(".duels.csv")] = duels_to_csv(duels)
    if sampled := sampled_figures_of(records):
        texts[path.with_suffix(".sampled.csv")] = sampled_to_csv(sampled)
    if categories := category_figures_of(records):
        texts[path.with_suffix(".categories.csv")] = categories_to_csv(categories)
    if html:
        from paceline.bench.page import make_page  # needs the optional matplotlib

        texts[path.with_suffix(".html")] = make_page(records, title=f"Paceline benchmark: {path.stem}")
    for file, text in texts.items():
        file.write_text(text, encoding="utf-8")
    return list(texts)
