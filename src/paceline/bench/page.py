"""A report as one HTML page that loads nothing from elsewhere. Needs matplotlib; measures nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

import jinja2
from markupsafe import Markup

from paceline.bench import plots
from paceline.bench.categories import CategoryFigures, at_best, category_figures_of
from paceline.bench.figures import Figures, Group, best, break_evens, figures_of, grid, runs_of
from paceline.bench.head_to_head import DuelFigures, duel_figures_of
from paceline.bench.missing_peers import failures_of, peers_of
from paceline.bench.raw import Record
from paceline.bench.sampled import SampledFigures, sampled_figures_of
from paceline.bench.statistics import CONTROL_HIGH, CONTROL_LOW, Estimate
from paceline.bench.sweep import describe_sampling
from paceline.bench.tables import describe_group, number, percent

HEADINGS = (
    "drafter",
    "k",
    "batch",
    "speed-up",
    "95 %",
    "tokens/s",
    "decoding alone",
    "of the limit",
    "plain",
    "tokens/step",
    "without own",
    "accepted",
    "ideal",
    "efficiency",
    "texts that differ",
    "first at",
    "looping",
    "A/A",
)
DUEL_HEADINGS = (
    "conditions",
    "batch",
    "ours",
    "other",
    "other's time over ours",
    "95 %",
    "tokens/s",
    "other's",
    "texts that differ",
    "first at",
    "looping",
    "A/A",
)
CATEGORY_HEADINGS = ("conditions", "batch", "drafter", "category", "speed-up", "95 %", "tokens/step", "accepted")
CATEGORY_HEADINGS += ("texts", "looping")
SAMPLED_HEADINGS = ("precision", "sampling", "batch", "drafter", "steps per second over greedy's", "95 %")
SAMPLED_HEADINGS += ("tokens/step", "greedy's")
CAPTIONS = (
    (plots.speedup_over_k, "Speed-up over the draft length; bars are 95 % intervals."),
    (plots.acceptance_by_position, "Acceptance by position in the draft, of the positions that were drafted."),
    (plots.time_split, "Where a step's time goes."),
)
OVER_BATCH = "Speed-up over the batch size, each drafter at its best length for the smallest."


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a table."""

    kind: str  # a class of the page's style, or nothing
    values: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What belongs together: one precision, suite, temperature and length of text."""

    title: str
    plots: Sequence[tuple[str, Markup]]
    rows: Sequence[Row]
    crossings: Sequence[tuple[str, int, str]]


def make_page(records: Sequence[Record], *, title: str) -> str:
    """The page of a file of raw records; whatever stands in them is escaped.

    Raises ValueError for records without a single cell.
    """
    figures = figures_of(records)
    if not figures:
        raise ValueError("no cells in the raw figures: there is nothing to report yet; run paceline bench first")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(files("paceline.bench").joinpath("report.html.j2").read_text(encoding="utf-8"))
    groups: dict[Group, list[Figures]] = {}
    for line in figures:
        groups.setdefault(line.group, []).append(line)
    return template.render(
        title=title,
        control_low=CONTROL_LOW,
        control_high=CONTROL_HIGH,
        runs=[_describe(run) for run in runs_of(records)],
        peers=list(dict.fromkeys(map(str, peers_of(records)))),
        failures=list(map(str, failures_of(records))),
        headings=HEADINGS,
        sections=[_section(group, lines) for group, lines in groups.items()],
        grid=grid(figures),
        duel_headings=DUEL_HEADINGS,
        duels=[_duel_row(line) for line in duel_figures_of(records)],
        sampled_headings=SAMPLED_HEADINGS,
        sampled=[_sampled_row(line) for line in sampled_figures_of(records)],
        category_headings=CATEGORY_HEADINGS,
        categories=[_category_row(line) for line in at_best(category_figures_of(records), figures)],
    )


def _section(group: Group, lines: Sequence[Figures]) -> Section:
    sound = [line for line in lines if not line.void]
    drawings: list[tuple[str, Markup]] = []
    if sound:
        # Markup: drawings of our own; names in them were escaped by the library that drew them.
        drawings = [(caption, Markup(draw(sound))) for draw, caption in CAPTIONS]
        if len({line.cell.batch_size for line in sound}) > 1:
            drawings.insert(1, (OVER_BATCH, Markup(plots.speedup_over_batch(sound))))
    fastest = {id(line) for line in best(lines)}
    return Section(
        title=describe_group(group),
        plots=drawings,
        rows=[_row(line, fastest=id(line) in fastest) for line in lines],
        crossings=[(drafter, count, str(crossing)) for _, drafter, count, crossing in break_evens(lines)],
    )


def _row(line: Figures, *, fastest: bool) -> Row:
    cell, speedup = line.cell, line.speedup
    alone = "-" if line.decoding_tokens_per_second is None else f"{line.decoding_tokens_per_second:.1f}"
    times = (*_interval(speedup), f"{line.tokens_per_second:.1f}", alone, percent(line.of_limit))
    values = (
        cell.drafter,
        str(cell.num_draft_tokens or "-"),
        str(cell.batch_size),
        *(("void", *"----") if line.void else times),
        f"{line.plain_tokens_per_second:.1f}",
        number(line.tokens_per_step),
        number(line.accepted_per_step),
        percent(line.acceptance),
        number(None if line.void else line.ideal),
        percent(None if line.void else line.efficiency),
        f"{line.num_different} of {line.num_texts}",
        "-" if line.first_difference is None else str(line.first_difference),
        f"{line.num_looping} of {line.num_texts}",
        f"{line.control:.3f}",
    )
    return Row(kind="void" if line.void else "best" if fastest else "", values=values)


def _duel_row(line: DuelFigures) -> Row:
    own = line.duel.own
    rates = (f"{line.tokens_per_second:.1f}", f"{line.other_tokens_per_second:.1f}")
    values = (
        describe_group(line.group),
        str(own.batch_size),
        own.way,
        line.duel.other.way,
        *(("void", "-", "-", "-") if line.void else (*_interval(line.ratio), *rates)),
        f"{line.num_different} of {line.num_texts}",
        "-" if line.first_difference is None else str(line.first_difference),
        f"{line.num_looping} of {line.num_texts}",
        f"{line.control:.3f}",
    )
    return Row(kind="void" if line.void else "", values=values)


def _category_row(line: CategoryFigures) -> Row:
    values = (
        describe_group(line.group),
        str(line.cell.batch_size),
        line.cell.way,
        line.category,
        *(("-", "-") if line.speedup is None else _interval(line.speedup)),
        number(line.tokens_per_step),
        percent(line.acceptance),
        str(line.num_texts),
        str(line.num_looping),
    )
    return Row(kind="", values=values)


def _sampled_row(line: SampledFigures) -> Row:
    values = (
        line.label,
        describe_sampling(line.cell.temperature, line.cell.top_p),
        str(line.cell.batch_size),
        line.cell.way,
        *(("void", "-") if line.void else _interval(line.ratio)),
        number(line.tokens_per_step),
        number(line.greedy_tokens_per_step),
    )
    return Row(kind="void" if line.void else "", values=values)


def _interval(value: Estimate) -> tuple[str, str]:
    return f"{value.value:.2f}", f"{value.low:.2f}-{value.high:.2f}"


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
