"""The tables of paceline bench: their columns, and the sections of a file of raw figures. Measures nothing."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from paceline.bench.categories import CategoryFigures, at_best, category_figures_of
from paceline.bench.columns import Column, Section, grouped, interval, number
from paceline.bench.figures import PHASES, Figures, Group, best, break_evens, figures_of, grid
from paceline.bench.head_to_head import HeadToHeadFigures, head_to_head_figures
from paceline.bench.raw import Record
from paceline.bench.runner import Comparison
from paceline.bench.sampled import sampled_figures_of
from paceline.bench.sweep import describe_sampling

RATIO, TWO, RATE, SHARE = interval(), number(".2f"), number(".0f"), number(".0%")


def _column(name: str, heading: str | None = None, get: str | Callable[[Any], Any] | None = None, **given: Any) -> Any:
    """A column of CSV; its value is the attribute of that name unless ``get`` says otherwise."""
    getter = get if callable(get) else attrgetter(get or name)
    return Column(name=name, heading=heading, get=getter, **given)


def _shown(heading: str, get: Callable[[Any], Any], **given: Any) -> Any:
    """A column of tables alone."""
    return Column(heading=heading, get=get, **given)


def _step(at: int, name: str = "step_seconds") -> Callable[[Any], float | None]:
    """Milliseconds of a phase of a step."""
    return lambda line: 1e3 * getattr(line, name)[at] if getattr(line, name) else None


def _sampling(cell: str) -> list[Any]:
    """How the texts were sampled, in CSV."""
    return [_column(name, get=f"{cell}.{name}") for name in ("temperature", "top_p", "max_tokens")]


RUN: list[Any] = [_column(name) for name in ("run", "label", "suite")]
CELL: list[Any] = [
    *RUN,
    _column("drafter", get="cell.drafter"),
    _column("num_draft_tokens", get="cell.num_draft_tokens"),
    _column("batch_size", get="cell.batch_size"),
    *_sampling("cell"),
]
DIFFERENCES: list[Any] = [
    _shown("differ", lambda line: f"{line.num_different}/{line.num_texts}"),
    _column("num_texts"),
    _column("num_looping", "looping", wide=True),
    _column("num_different"),
    _column("first_difference", "first at", wide=True),
]
BATCH = _shown("batch", attrgetter("cell.batch_size"))
WAY = _shown("drafter", attrgetter("cell.way"), left=True)
CELLS: list[Column[Figures]] = [
    *CELL,
    _shown("drafter", attrgetter("cell.drafter"), left=True),
    _shown("k", lambda line: line.cell.num_draft_tokens or None),
    BATCH,
    _column("void"),
    _column("attempts"),
    _column("control", "A/A", form=number(".3f"), wide=True),
    _column("speedup", "speed-up 95 %", form=RATIO, timed=True, estimate=True),
    _column("tokens_per_second", "tokens/s", form=RATE, timed=True),
    _column("plain_tokens_per_second", "plain", form=RATE, wide=True),
    _column("decoding_tokens_per_second", "decode", form=RATE, timed=True),
    _column("limit_tokens_per_second"),
    _column("of_limit", "limit", form=SHARE, timed=True),
    _column("start_seconds"),
    _column("tokens_per_step", "/step", form=TWO),
    _column("accepted_per_step", "drafted ones", form=TWO, wide=True),
    _column("acceptance", "accept", form=SHARE),
    _column("acceptance_by_position", get=lambda line: " ".join(f"{rate:.4f}" for rate in line.by_position)),
    _column("ideal", "ideal", form=TWO, timed=True, wide=True),
    _column("efficiency", "efficiency", form=SHARE, timed=True, wide=True),
    *(_column(f"{phase}_ms", get=_step(at)) for at, phase in enumerate(PHASES)),
    _column("plain_score_ms", get=_step(1, "plain_step_seconds")),
    *DIFFERENCES,
]
HEAD_TO_HEAD: list[Column[HeadToHeadFigures]] = [
    *RUN,
    _column("batch_size", "batch", get="pair.ours.batch_size"),
    *_sampling("pair.ours"),
    _shown("ours", attrgetter("pair.ours.way"), left=True),
    _column("own", get="pair.ours.drafter"),
    _column("own_num_draft_tokens", get="pair.ours.num_draft_tokens"),
    _shown("other", attrgetter("pair.other.way"), left=True),
    _column("other", get="pair.other.drafter"),
    _column("other_num_draft_tokens", get="pair.other.num_draft_tokens"),
    _column("void"),
    _column("attempts"),
    _column("control", "A/A", form=number(".3f"), wide=True),
    _column("ratio", "ratio 95 %", form=RATIO, timed=True, estimate=True),
    _shown("tokens/s", lambda line: f"{line.tokens_per_second:.0f} : {line.other_tokens_per_second:.0f}", timed=True),
    _column("tokens_per_second"),
    _column("other_tokens_per_second"),
    *DIFFERENCES,
]
CATEGORIES: list[Column[CategoryFigures]] = [
    *CELL,
    BATCH,
    WAY,
    _column("category", "category", left=True),
    _column("void"),
    _column("speedup", "speed-up 95 %", form=RATIO, estimate=True),
    _column("tokens_per_step", "/step", form=TWO),
    _column("acceptance", "accept", form=SHARE),
    _column("num_texts", "texts"),
    _column("num_looping", "looping", wide=True),
]
SAMPLED: list[Any] = [
    *CELL,
    _shown("sampling", lambda line: describe_sampling(line.cell.temperature, line.cell.top_p), left=True),
    _shown("tokens", attrgetter("cell.max_tokens")),
    BATCH,
    WAY,
    _column("void"),
    _column("ratio", "ratio 95 %", form=interval(".3f"), timed=True, estimate=True),
    _column("tokens_per_step", "/step", form=TWO),
    _column("greedy_tokens_per_step", "greedy's", form=TWO),
]
BEST: list[Column[Figures]] = [
    _shown("precision", attrgetter("label"), left=True),
    _shown("temp", attrgetter("cell.temperature"), form=number("g")),
    _shown("tokens", attrgetter("cell.max_tokens")),
    *(column for column in CELLS if column.heading in ("drafter", "k", "batch", "speed-up 95 %", "tokens/s")),
]
BREAK_EVEN: list[Any] = [
    _shown("precision", lambda line: line[0][0], left=True),
    _shown("temp", lambda line: line[0][2], form=number("g")),
    _shown("tokens", lambda line: line[0][4]),
    _shown("drafter", lambda line: line[1], left=True),
    _shown("k", lambda line: line[2]),
    _shown("break-even", lambda line: line[3]),
]
GRID: list[Any] = [
    _shown("precision", attrgetter("label"), left=True),
    _shown("temp", attrgetter("temperature"), form=number("g")),
    _shown("batch", attrgetter("batch_size")),
    _shown("drafter", attrgetter("drafter"), left=True),
    _shown("tokens", lambda line: ", ".join(map(str, line.max_tokens))),
    _shown("gamma", attrgetter("num_draft_tokens")),
    _shown("speed-up", attrgetter("speedup"), form=TWO),
    _shown("tokens/s", attrgetter("tokens_per_second"), form=number(".1f")),
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


def cell_sections(figures: Sequence[Figures]) -> list[Section[Figures]]:
    """For all that was timed alike, one line per cell."""
    return grouped(describe_group, CELLS, figures, attrgetter("group"))


def sections_of(records: Sequence[Record]) -> list[Section[Any]]:
    """Every table that the figures give, but for those of ``cell_sections``."""
    figures = figures_of(records)
    chosen = best(figures)
    lengths = {line.cell.num_draft_tokens for line in figures if line.cell.num_draft_tokens}
    found: list[Section[Any]] = grouped(
        lambda group: f"by category, each drafter at its best k, {describe_group(group)}",
        CATEGORIES,
        at_best(category_figures_of(records), figures),
        attrgetter("group"),
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
            attrgetter("group"),
        ),
        Section(
            title="sampling beside greedy decoding: steps per second over its, in one run",
            columns=SAMPLED,
            lines=sampled_figures_of(records),
            note=SAMPLED_NOTE,
        ),
    ]
    return [section for section in found if section.lines]


def make_table(comparison: Comparison, *, title: str | None = None) -> Table:
    """One line per configuration: median and range over the repeats, then what happened in a step."""
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
