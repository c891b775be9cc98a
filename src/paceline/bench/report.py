"""The tables of paceline bench: their columns, and the sections of a file of raw figures. Measures nothing."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from rich.table import Table

from paceline.bench.columns import Column, Section, grouped
from paceline.bench.figures import (
    Sampled,
    acceptances_of,
    best,
    break_evens,
    category_figures_of,
    figures_of,
    grid,
    sampled_figures_of,
    steps_of,
)
from paceline.bench.head_to_head import head_to_head_figures
from paceline.bench.line import PHASES, Group, Line
from paceline.bench.raw import Record
from paceline.bench.runner import Comparison, Measured
from paceline.bench.statistics import BreakEven
from paceline.bench.sweep import describe_sampling


def _named(name: str, get: str | Callable[[Any], Any] | None = None, heading: str | None = None, **given: Any) -> Any:
    """A column that CSV has too; its value is the attribute of that name unless ``get`` says otherwise."""
    return Column(heading, get or name, given.pop("form", ""), name=name, **given)


def _mean(path: str) -> Callable[[Sequence[Line]], float]:
    """Over several lines."""
    return lambda lines: fmean(Column(None, path).value(line) for line in lines)


def _step(at: int, path: str = "step_seconds") -> Callable[[Line], float | None]:
    """Milliseconds of a phase of a step."""
    return lambda line: 1e3 * getattr(line, path)[at] if getattr(line, path) else None


def _sampling(cell: str) -> list[Any]:
    return [_named(name, f"{cell}.{name}") for name in ("temperature", "top_p", "max_tokens")]


def _cell(line: str = "") -> list[Any]:
    """The columns of CSV that say which cell it is."""
    return [
        *(_named(name, line + name) for name in ("run", "label", "suite")),
        *(_named(name, f"{line}cell.{name}") for name in ("drafter", "num_draft_tokens", "batch_size")),
        _named("set", f"{line}cell.isa", rare=True),
        *_sampling(f"{line}cell"),
    ]


def _category(line: Line) -> str | None:
    """In words; none for prompts without categories."""
    return line.category or ("all" if category_figures_of([line]) else None)


ATTEMPTS = _named("attempts", lambda line: len(line.attempts))
CONTROL = _named("control", heading="A/A", form=".3f", wide=True)
PER_STEP = _named("tokens_per_step", heading="/step", form=".2f")
ACCEPT = _named("acceptance", heading="accept", form=".0%")
ACCEPTED_PER_STEP = _named("accepted_per_step", heading="drafted ones", form=".2f", wide=True)
BY_POSITION = _named("acceptance_by_position", lambda line: " ".join(f"{rate:.4f}" for rate in line.by_position))
LOOPING = _named("num_looping", heading="looping", wide=True)
BATCH: Column[Line] = Column("batch", "cell.batch_size")
WAY: Column[Line] = Column("drafter", "cell.way", left=True)
NUM_TEXTS = _named("num_texts", lambda line: len(line.texts))
DIFFERENCES: list[Column[Line]] = [
    Column("differ", lambda line: f"{len(line.differences)}/{len(line.texts)}"),
    NUM_TEXTS,
    LOOPING,
    _named("num_different", lambda line: len(line.differences)),
    _named("first_difference", lambda line: min(line.differences, default=None), "first at", wide=True),
]
DRAFTER: Column[Line] = Column("drafter", "cell.method", left=True)
DRAFT_TOKENS: Column[Line] = Column("k", lambda line: line.cell.num_draft_tokens or None)
SPEEDUP = _named("speedup", heading="speed-up 95 %", form=".2f", timed=True, estimate=True)
SPEED = _named("tokens_per_second", heading="tokens/s", form=".0f", timed=True)
CELLS: list[Column[Line]] = [
    *_cell(),
    DRAFTER,
    DRAFT_TOKENS,
    BATCH,
    _named("void"),
    ATTEMPTS,
    CONTROL,
    SPEEDUP,
    SPEED,
    _named("plain_tokens_per_second", "base_tokens_per_second", "plain", form=".0f", wide=True),
    _named("decoding_tokens_per_second", heading="decode", form=".0f", timed=True),
    _named("limit_tokens_per_second"),
    _named("of_limit", heading="limit", form=".0%", timed=True),
    _named("start_seconds"),
    PER_STEP,
    ACCEPTED_PER_STEP,
    ACCEPT,
    BY_POSITION,
    _named("ideal", heading="ideal", form=".2f", timed=True, wide=True),
    _named("efficiency", heading="efficiency", form=".0%", timed=True, wide=True),
    *(_named(f"{phase}_ms", _step(at)) for at, phase in enumerate(PHASES)),
    _named("plain_score_ms", _step(1, "base_step_seconds")),
    *DIFFERENCES,
]
HEAD_TO_HEAD: list[Column[Line]] = [
    *(_named(name) for name in ("run", "label", "suite")),
    _named("batch_size", "cell.batch_size", "batch"),
    _named("set", "cell.isa", rare=True),
    *_sampling("cell"),
    Column("ours", "cell.way", left=True),
    _named("ours", "cell.drafter"),
    _named("ours_num_draft_tokens", "cell.num_draft_tokens"),
    Column("other", "other.way", left=True),
    _named("other", "other.drafter"),
    _named("other_num_draft_tokens", "other.num_draft_tokens"),
    _named("void"),
    ATTEMPTS,
    CONTROL,
    _named("ratio", "speedup", "ratio 95 %", form=".2f", timed=True, estimate=True),
    Column("tokens/s", lambda line: f"{line.tokens_per_second:.0f} : {line.base_tokens_per_second:.0f}", timed=True),
    _named("tokens_per_second"),
    _named("other_tokens_per_second", "base_tokens_per_second"),
    *DIFFERENCES,
]
CATEGORIES: list[Column[Line]] = [
    *_cell(),
    BATCH,
    WAY,
    _named("category", heading="category", left=True),
    _named("void"),
    _named("speedup", "category_speedup", "speed-up 95 %", form=".2f", estimate=True),
    PER_STEP,
    ACCEPT,
    _named("num_texts", lambda line: len(line.texts), "texts"),
    LOOPING,
]
SAMPLED: list[Column[Sampled]] = [
    *_cell("line."),
    Column("sampling", lambda one: describe_sampling(one.line.cell.temperature, one.line.cell.top_p), left=True),
    Column("tokens", "line.cell.max_tokens"),
    Column("batch", "line.cell.batch_size"),
    Column("drafter", "line.cell.way", left=True),
    _named("void"),
    _named("ratio", heading="ratio 95 %", form=".3f", timed=True, estimate=True),
    *(
        _named(name, lambda one, at=at: one[at].record["num_tokens"] / steps_of(one[at]), heading, form=".2f")
        for at, (name, heading) in enumerate((("tokens_per_step", "/step"), ("greedy_tokens_per_step", "greedy's")))
    ),
]
ACCEPTANCES: list[Column[Line]] = [
    *_cell(),
    WAY,
    BATCH,
    _named("category", _category, "category", left=True, rare=True),
    PER_STEP,
    ACCEPTED_PER_STEP,
    ACCEPT,
    BY_POSITION,
    Column("by position", lambda line: " ".join(f"{rate:.0%}" for rate in line.by_position), left=True),
    _named("num_texts", lambda line: len(line.texts), "texts"),
    LOOPING,
]
BEST: list[Column[Line]] = [
    Column("precision", "label", left=True),
    Column("temp", "cell.temperature", "g"),
    Column("tokens", "cell.max_tokens"),
    *(DRAFTER, DRAFT_TOKENS, BATCH, SPEEDUP, SPEED),
]
BREAK_EVEN: list[Column[tuple[Line, BreakEven]]] = [
    Column("precision", "0.label", left=True),
    Column("temp", "0.cell.temperature", "g"),
    Column("tokens", "0.cell.max_tokens"),
    Column("drafter", "0.cell.method", left=True),
    Column("k", "0.cell.num_draft_tokens"),
    Column("break-even", "1", str),
]
GRID: list[Column[list[Line]]] = [
    Column("precision", "0.label", left=True),
    Column("temp", "0.cell.temperature", "g"),
    Column("batch", "0.cell.batch_size"),
    Column("drafter", "0.cell.method", left=True),
    Column("tokens", lambda lines: ", ".join(str(line.cell.max_tokens) for line in lines)),
    Column("gamma", "0.cell.num_draft_tokens"),
    Column("speed-up", _mean("speedup.value"), ".2f"),
    Column("tokens/s", _mean("tokens_per_second"), ".1f"),
]
COMPARISON: list[Column[Measured]] = [
    Column("", "name", left=True),
    Column("tokens/s (spread)", lambda one: "{:.0f} ({:.0f}-{:.0f})".format(*one.tokens_per_second.summary)),
    Column("tokens/step", lambda one: one.sample.summary and one.sample.summary.mean_acceptance_length, ".2f"),
    Column("accepted", lambda one: one.acceptance_rate, ".0%"),
    Column(
        "speed-up (spread)",
        lambda one: "{:.2f} ({:.2f}-{:.2f})".format(*one.speedup.summary) if set(one.speedup.values) != {1} else "1",
    ),
]
CATEGORY_NOTE = """Each drafter at the draft length that was fastest over all categories. There is a speed-up where a
category's prompts were timed without others between them."""
SAMPLED_NOTE = (
    "Interleaved in one run. The ratio is of steps per second: of tokens per second at equal tokens per step."
)


def describe_group(group: Group) -> str:
    """A group in words."""
    label, suite, temperature, top_p, max_tokens = group
    return f"{label}, {suite}, {describe_sampling(temperature, top_p)}, {max_tokens} tokens"


def cell_sections(figures: Sequence[Line]) -> list[Section[Line]]:
    """For all that was timed alike, one line per cell."""
    return grouped(describe_group, CELLS, figures, lambda line: line.group)


def acceptance_sections(lines: Sequence[Line]) -> list[Section[Line]]:
    """For all that was counted alike, one line per cell and, where there are several, per category of prompts."""
    return grouped(
        lambda group: f"acceptance, {describe_group(group)}",
        ACCEPTANCES,
        _with_categories(lines),
        lambda line: line.group,
    )


def _with_categories(lines: Sequence[Line]) -> list[Line]:
    return [one for line in lines for one in (line, *category_figures_of([line]))]


def sections_of(records: Sequence[Record]) -> list[Section[Any]]:
    """Every table that the timed figures give, but for those of ``cell_sections``."""
    figures = figures_of(records)
    chosen = best(figures)
    lengths = {line.cell.num_draft_tokens for line in figures if line.cell.num_draft_tokens}
    found: list[Section[Any]] = grouped(
        lambda group: f"by category, each drafter at its best k, {describe_group(group)}",
        CATEGORIES,
        category_figures_of(line for line in figures if line in chosen),
        lambda line: line.group,
        note=CATEGORY_NOTE,
    )
    found += [
        Section(title="each at its best k", columns=BEST, lines=chosen if len(lengths) > 1 else []),
        Section(title="batch size at which drafting stops paying", columns=BREAK_EVEN, lines=break_evens(figures)),
        Section(title="means over lengths of text", columns=GRID, lines=grid(figures)),
        *grouped(
            lambda group: f"best against best, {describe_group(group)}; above 1 ours is faster",
            HEAD_TO_HEAD,
            head_to_head_figures(records),
            lambda line: line.group,
        ),
        Section(
            title="sampling beside greedy decoding: steps per second over its, in one run",
            columns=SAMPLED,
            lines=sampled_figures_of(figures),
            note=SAMPLED_NOTE,
        ),
    ]
    return [section for section in found if section.lines]


def csv_tables(records: Sequence[Record]) -> dict[str, tuple[Sequence[Column[Any]], Sequence[Any]]]:
    """Columns and lines of the CSV files beside a file of raw figures, by suffix."""
    figures = figures_of(records)
    found: dict[str, tuple[Sequence[Column[Any]], Sequence[Any]]] = {
        ".csv": (CELLS, figures),
        ".head-to-head.csv": (HEAD_TO_HEAD, head_to_head_figures(records)),
        ".sampled.csv": (SAMPLED, sampled_figures_of(figures)),
        ".categories.csv": (CATEGORIES, category_figures_of(figures)),
        ".acceptance.csv": (ACCEPTANCES, _with_categories(acceptances_of(records))),
    }
    return {suffix: table for suffix, table in found.items() if table[1]}


def make_table(comparison: Comparison, *, title: str = "") -> Table:
    """One line per configuration: median and range over the repeats, then what happened in a step."""
    return Section(title=title, columns=COMPARISON, lines=comparison.measured).table()
