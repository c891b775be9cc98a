"""Figures as SVG drawings that stand inside a page. Needs matplotlib; measures and computes nothing."""

import io
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from paceline.bench.figures import PHASES, Figures, best
from paceline.bench.sweep import PLAIN

SIZE = (6.4, 3.4)  # inches
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "paceline",
    "text.parse_math": False,
    "font.size": 9.0,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


def speedup_over_k(figures: Sequence[Figures]) -> str:
    """Speed-up over the draft length at the smallest batch size, one line per drafter, with intervals."""

    def draw(axes: Axes) -> None:
        smallest = min(line.cell.batch_size for line in figures)
        for name, lines in _by_drafter(line for line in figures if line.cell.batch_size == smallest).items():
            lines = sorted(lines, key=lambda line: line.cell.num_draft_tokens)
            if lines[0].cell.num_draft_tokens == 0:
                axes.axhline(lines[0].speedup.value, linestyle=":", label=name, color="0.4")
                continue
            _line(axes, [line.cell.num_draft_tokens for line in lines], lines, name)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _finish(axes, x=f"draft tokens per step (k), batch {smallest}", y="speed-up over plain")
        axes.axhline(1, color="black", linewidth=0.8)

    return _svg(draw)


def speedup_over_batch(figures: Sequence[Figures]) -> str:
    """Speed-up over the batch size, every drafter at its best length for the smallest batch; 1 is break-even."""

    def draw(axes: Axes) -> None:
        smallest = min(line.cell.batch_size for line in figures)
        chosen = {
            line.cell.drafter: line.cell.num_draft_tokens for line in best(figures) if line.cell.batch_size == smallest
        }
        for name, lines in _by_drafter(figures).items():
            count = chosen.get(name)
            kept = [line for line in lines if count and line.cell.num_draft_tokens == count]
            if kept:
                kept.sort(key=lambda line: line.cell.batch_size)
                _line(axes, [line.cell.batch_size for line in kept], kept, f"{name}, k={count}")
        axes.set_xscale("log", base=2)
        sizes = sorted({line.cell.batch_size for line in figures})
        axes.set_xticks(sizes, labels=list(map(str, sizes)))
        axes.axhline(1, color="black", linewidth=0.8)
        axes.text(1, 1, " break-even", transform=axes.get_yaxis_transform(), va="center", fontsize=8)
        _finish(axes, x="batch size", y="speed-up over plain")

    return _svg(draw)


def acceptance_by_position(figures: Sequence[Figures]) -> str:
    """Share of drafted tokens that were kept, by their place in the draft, for every drafter's longest draft."""

    def draw(axes: Axes) -> None:
        for name, lines in _by_drafter(line for line in figures if line.by_position).items():
            longest = max(lines, key=lambda line: (line.cell.num_draft_tokens, -line.cell.batch_size))
            positions = range(1, len(longest.by_position) + 1)
            axes.plot(positions, longest.by_position, marker="o", label=f"{name}, k={longest.cell.num_draft_tokens}")
        axes.set_ylim(0, 1)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _finish(axes, x="position in the draft", y="accepted of those drafted there")

    return _svg(draw)


def time_split(figures: Sequence[Figures]) -> str:
    """Milliseconds of a step by phase, for plain decoding and every drafter and length at the smallest batch size."""

    def draw(axes: Axes) -> None:
        smallest = min(line.cell.batch_size for line in figures)
        own = [line for line in figures if line.cell.batch_size == smallest and line.step_seconds]
        bars = {line.cell.way.replace("k=", ""): line.step_seconds for line in own if line.cell.drafter != PLAIN}
        if own:
            bars = {PLAIN: own[0].plain_step_seconds, **bars}
        floor = [0.0] * len(bars)
        for at, phase in enumerate(PHASES):
            heights = [1e3 * seconds[at] for seconds in bars.values()]
            axes.bar(range(len(bars)), heights, bottom=floor, label=phase)
            floor = [low + height for low, height in zip(floor, heights, strict=True)]
        axes.set_xticks(range(len(bars)), labels=list(bars), rotation=60, ha="right")
        _finish(axes, x="", y=f"ms per step, batch {smallest}")

    return _svg(draw)


def _by_drafter(figures: Iterable[Figures]) -> dict[str, list[Figures]]:
    found: defaultdict[str, list[Figures]] = defaultdict(list)
    for line in figures:
        found[line.cell.drafter].append(line)
    return found


def _line(axes: Axes, x: Sequence[int], lines: Sequence[Figures], name: str) -> None:
    values = [line.speedup.value for line in lines]
    below = [max(0.0, line.speedup.value - line.speedup.low) for line in lines]
    above = [max(0.0, line.speedup.high - line.speedup.value) for line in lines]
    axes.errorbar(x, values, yerr=(below, above), marker="o", capsize=3, label=name)


def _finish(axes: Axes, *, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)


def _svg(draw: Callable[[Axes], None]) -> str:
    """A drawing to stand inside a page."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=SIZE, layout="constrained")
        draw(figure.add_subplot())
        text = to_svg(figure)
    return re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")


def plain_log(axis: Axis) -> None:
    """A logarithmic ``axis`` with ticks at 1, 2 and 5 of every decade, written as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def to_svg(figure: Figure) -> str:
    """A figure without anything that a page would have to load; text stays text. The same figure gives the same bytes.

    Draw and call this under ``matplotlib.rc_context(STYLE)``.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
