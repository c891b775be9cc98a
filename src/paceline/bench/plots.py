"""The charts of a report of paceline bench, to be placed in a page. Needs matplotlib; computes nothing."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from paceline.bench.drawing import COLOURS, baseline, draw_panels, error_bars, finish, left_out, powers_of_two
from paceline.bench.figures import best
from paceline.bench.headline import Headline
from paceline.bench.interleaved import plain_cell
from paceline.bench.line import PHASES, Line
from paceline.bench.sweep import PLAIN

WIDTH, HEIGHT = 4.6, 3.0  # inches: as wide as a telephone shows with letters that can be read
BAR = 0.19  # inches of a horizontal bar
FRAME = 1.0  # inches of its axis and legend


class Chart(NamedTuple):
    """A drawing, what it shows, and what is to be seen in it."""

    title: str
    caption: str
    drawing: str


def speed_chart(headline: Headline) -> Chart | None:
    """Tokens per second of every engine; nothing where no speed is known."""
    if not headline.speeds:
        return None
    caption = f"{headline.setting}; whiskers are 95 % intervals.{left_out(headline.num_void, headline.num_cells)}"
    return Chart("Tokens per second", caption, _in_page(speed_picture(headline)))


def speed_picture(headline: Headline) -> str:
    """The drawing of ``speed_chart`` as a file of its own."""
    size = WIDTH, FRAME + BAR * 1.3 * len(headline.speeds)
    return draw_panels(lambda panels: tokens_per_second(panels[0], headline), size=size)


def charts_of(lines: Sequence[Line]) -> list[Chart]:
    """Of cells that were timed alike. Times of void ones are left out; what they accepted is not."""
    sound = [line for line in lines if not line.void]
    return [*(_timed_charts(sound, len(lines)) if sound else []), *acceptance_charts(lines)]


def acceptance_charts(lines: Sequence[Line]) -> list[Chart]:
    """Of cells that drafted alike, timed or not; none where no draft was counted by position."""
    if not any(line.by_position for line in lines):
        return []
    caption = (
        "Share of the drafted tokens that the target kept, by their place in the draft; a token is kept only if those "
        "before it are. Each drafter's longest draft."
    )
    drawing = _draw(lambda axes: acceptance_by_position(axes, lines), (WIDTH, HEIGHT))
    return [Chart("Acceptance by position in the draft", caption, drawing)]


def _timed_charts(sound: Sequence[Line], num_lines: int) -> list[Chart]:
    smallest = min(line.cell.batch_size for line in sound)
    several = {line.cell.batch_size for line in sound if line.cell.num_draft_tokens}
    lengths = {line.cell.num_draft_tokens for line in sound if line.cell.num_draft_tokens}
    fastest = max((line for line in sound if line.cell.batch_size == smallest), key=lambda line: line.speedup.value)
    most = f"{fastest.cell.way} is the fastest, {fastest.speedup.value:.2f} times plain decoding"
    without = left_out(num_lines - len(sound), num_lines)
    found: list[Chart] = []

    def add(title: str, caption: str, draw: Callable[[Axes, Sequence[Line]], None], height: float = HEIGHT) -> None:
        drawing = _draw(lambda axes: draw(axes, sound), (WIDTH, height))
        found.append(Chart(title, f"{caption}{without}", drawing))

    if len(lengths) > 1:
        caption = f"At batch {smallest}, {most}. Above the line at 1 drafting pays; whiskers are 95 % intervals."
        add("Speed-up by draft length", caption, speedup_over_k)
    if len(several) > 1:
        caption = "Drafting pays as long as a line is above 1. Each drafter at its best length for the smallest batch."
        add("Speed-up by batch size", caption, speedup_over_batch)
    if bars := _steps(sound):
        caption = f"At batch {smallest}: what a step takes without a draft, and by how much a draft makes it longer."
        add("Where the time of a step goes", caption, time_split, FRAME + BAR * 1.2 * len(bars))
    return found


def tokens_per_second(axes: Axes, headline: Headline) -> None:
    """A bar without a draft, and one with the best draft, for every engine."""
    engines: dict[str, float] = {}
    top = max(one.tokens_per_second.high for one in headline.speeds)
    labels: set[str] = set()
    at = 0.0
    for one in headline.speeds:
        at -= 1.0 if one.engine in engines else 1.35
        engines[one.engine] = at if one.engine not in engines else (engines[one.engine] + at) / 2
        rate, label = one.tokens_per_second, "with a draft" if one.draft else "without"
        whisker = [[rate.value - rate.low], [rate.high - rate.value]]
        axes.barh(
            at,
            rate.value,
            height=0.9,
            xerr=whisker,
            capsize=2,
            color=COLOURS[0] if one.draft else "none",
            edgecolor=COLOURS[0],
            error_kw={"elinewidth": 0.8},
            label=label if label not in labels else None,
        )
        labels.add(label)
        axes.text(
            rate.high + 0.015 * top,
            at,
            f"{rate.value:.0f}, {one.draft}".rstrip(", "),
            verticalalignment="center",
            size=8,
        )
    axes.set_yticks(list(engines.values()), labels=list(engines))
    axes.set_xlim(0, 1.45 * top)
    axes.grid(visible=False, axis="y")
    finish(axes, x="tokens per second")


def speedup_over_k(axes: Axes, figures: Sequence[Line]) -> None:
    """Speed-up over the draft length at the smallest batch size, one line per drafter, with intervals."""
    smallest = min(line.cell.batch_size for line in figures)
    drafted = (line for line in figures if line.cell.batch_size == smallest and line.cell.num_draft_tokens)
    for name, lines in _by_drafter(drafted).items():
        lines = sorted(lines, key=lambda line: line.cell.num_draft_tokens)
        error_bars(axes, [line.cell.num_draft_tokens for line in lines], [line.speedup for line in lines], name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    finish(axes, x="draft tokens per step (k)", y="speed-up over plain decoding")
    baseline(axes)


def speedup_over_batch(axes: Axes, figures: Sequence[Line]) -> None:
    """Speed-up over the batch size, every drafter at its best length for the smallest batch; 1 is break-even."""
    smallest = min(line.cell.batch_size for line in figures)
    chosen = {
        line.cell.method: line.cell.num_draft_tokens for line in best(figures) if line.cell.batch_size == smallest
    }
    for name, lines in _by_drafter(figures).items():
        count = chosen.get(name)
        kept = sorted(
            (line for line in lines if count and line.cell.num_draft_tokens == count),
            key=lambda line: line.cell.batch_size,
        )
        if kept:
            sizes = [line.cell.batch_size for line in kept]
            error_bars(axes, sizes, [line.speedup for line in kept], f"{name}, k={count}")
    powers_of_two(axes, sorted({line.cell.batch_size for line in figures}))
    baseline(axes)
    finish(axes, x="batch size (sequences)", y="speed-up over plain decoding")


def acceptance_by_position(axes: Axes, figures: Sequence[Line]) -> None:
    """Share of drafted tokens that were accepted, by their place in the draft, for every drafter's longest draft."""
    found = _by_drafter(line for line in figures if line.by_position)
    width = 0.8 / len(found)
    for at, (name, lines) in enumerate(found.items()):
        longest = max(lines, key=lambda line: (line.cell.num_draft_tokens, -line.cell.batch_size))
        places = [place + width * (at - (len(found) - 1) / 2) for place in range(1, len(longest.by_position) + 1)]
        label = f"{name}, k={longest.cell.num_draft_tokens}"
        axes.bar(places, [100 * rate for rate in longest.by_position], width=0.92 * width, label=label)
    axes.set_ylim(0, 100)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter())
    axes.grid(visible=False, axis="x")
    finish(axes, x="position in the draft", y="accepted, of those drafted there")


def time_split(axes: Axes, figures: Sequence[Line]) -> None:
    """Milliseconds of a step by phase, for plain decoding and every drafter and length at the smallest batch size."""
    bars = _steps(figures)
    places = [-at for at in range(len(bars))]
    left = [0.0] * len(bars)
    for at, phase in enumerate(PHASES):
        widths = [1e3 * seconds[at] for seconds in bars.values()]
        axes.barh(places, widths, left=left, label=phase)
        left = [low + width for low, width in zip(left, widths, strict=True)]
    axes.set_yticks(places, labels=list(bars))
    axes.grid(visible=False, axis="y")
    finish(axes, x="ms per step", columns=len(PHASES))


def _steps(figures: Sequence[Line]) -> dict[str, tuple[float, ...]]:
    """Seconds of a step's phases, by what drafts, at the smallest batch size."""
    smallest = min(line.cell.batch_size for line in figures)
    timed = [line for line in figures if line.cell.batch_size == smallest and line.step_seconds]
    bars: dict[str, tuple[float, ...]] = {}
    for line in timed:
        bars.setdefault(plain_cell(line.cell).way, line.base_step_seconds)
    return bars | {line.cell.way: line.step_seconds for line in timed if line.cell.drafter != PLAIN}


def _by_drafter(figures: Iterable[Line]) -> dict[str, list[Line]]:
    found: defaultdict[str, list[Line]] = defaultdict(list)
    for line in figures:
        found[line.cell.method].append(line)
    return found


def _draw(draw: Callable[[Axes], None], size: tuple[float, float]) -> str:
    """A drawing to be placed in a page."""
    return _in_page(draw_panels(lambda panels: draw(panels[0]), size=size))


def _in_page(svg: str) -> str:
    return re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
