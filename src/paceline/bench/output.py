"""Reports beside a file of raw figures, made from it alone: CSV, tables, and an HTML page. Measures nothing."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import jinja2
from markupsafe import Markup
from rich.console import Console

from paceline.bench.columns import Section, to_csv
from paceline.bench.figures import acceptances_of, figures_of
from paceline.bench.headline import headline_of
from paceline.bench.line import Line
from paceline.bench.missing_peers import failures_of, peers_of
from paceline.bench.raw import RUN, Record, read_records
from paceline.bench.report import acceptance_sections, cell_sections, csv_tables, sections_of
from paceline.bench.statistics import CONTROL_HIGH, CONTROL_LOW


def check_drawing() -> None:
    """Raise ValueError where plots cannot be drawn."""
    if find_spec("matplotlib") is None:
        raise ValueError("the HTML report needs matplotlib: run pip install 'paceline[bench]', or give --no-html")


def print_tables(records: Sequence[Record], console: Console) -> None:
    """Every table that the figures give."""
    counted = acceptance_sections(acceptances_of(records))
    for section in (*cell_sections(figures_of(records)), *counted, *sections_of(records)):
        console.print(section.table())


def write_reports(path: Path, *, html: bool) -> list[Path]:
    """CSV, and HTML with its first chart as a picture if wanted, beside the raw figures at ``path``; the files written.

    Head-to-head comparisons, categories, acceptance without times and the cost of sampling have files of their own
    where there are any. Raises ValueError for a file that holds no figures, or no matplotlib with ``html``, before
    anything is written.
    """
    if html:
        check_drawing()
    records = read_records(path)
    texts = {
        path.with_suffix(suffix): to_csv(columns, lines) for suffix, (columns, lines) in csv_tables(records).items()
    }
    if html:
        from paceline.bench.plots import speed_picture  # needs the optional matplotlib

        headline = headline_of(records)
        texts[path.with_suffix(".html")] = make_page(records, title=f"Paceline benchmark: {path.stem}")
        if headline.speeds:
            texts[path.with_suffix(".svg")] = speed_picture(headline)
    for file, text in texts.items():
        file.write_text(text, encoding="utf-8")
    return list(texts)


def make_page(records: Sequence[Record], *, title: str) -> str:
    """The HTML page of a file of raw records, which loads nothing; everything in them is escaped.

    Raises ValueError for records without a single cell.
    """
    from paceline.bench import plots  # needs the optional matplotlib

    headline = headline_of(records)
    opening = plots.speed_chart(headline)
    timed, counted = cell_sections(figures_of(records)), acceptance_sections(acceptances_of(records))
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    # Drawings are our own; names in them were escaped by the library that drew them.
    environment.filters["drawn"] = Markup
    template = environment.from_string(files("paceline.bench").joinpath("report.html.j2").read_text(encoding="utf-8"))
    return template.render(
        title=title,
        sentence=headline.sentence,
        opening=[] if opening is None else [opening],
        sections=[
            *((f"all cells: {section.title}", section, plots.charts_of(section.lines)) for section in timed),
            *((section.title, section, plots.acceptance_charts(_whole(section))) for section in counted),
            *((section.title, section, []) for section in sections_of(records)),
        ],
        timed=bool(timed),
        control_low=CONTROL_LOW,
        control_high=CONTROL_HIGH,
        peers=list(dict.fromkeys(map(str, peers_of(records)))),
        failures=list(map(str, failures_of(records))),
        runs=[_describe(record) for record in records if record["kind"] == RUN],
    )


def _whole(section: Section[Line]) -> list[Line]:
    """The lines that are of all prompts."""
    return [line for line in section.lines if line.category is None]


def _describe(run: Record) -> list[tuple[str, str]]:
    """Conditions and notes of a run, flat, in words."""
    return [("run", str(run["run"])), *_flat(run["notes"], ""), *_flat(run["conditions"], "")]


def _flat(values: Mapping[str, object], prefix: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found.extend(_flat({str(key): entry for key, entry in value.items()}, f"{prefix}{name}."))
        else:
            found.append((f"{prefix}{name}", str(value)))
    return found
