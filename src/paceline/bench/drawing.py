"""SVG drawings: a style, panels, and lines with intervals. Needs matplotlib; measures and computes nothing."""

import io
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from paceline.bench.statistics import Estimate

# Told apart by colour, also by the colour-blind (the palette of Okabe and Ito), by dashes and by marker.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a5a00", "#555555")
DASHES = ("-", "--", "-.", ":", (0, (6, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2, 2, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "paceline",
    "text.parse_math": False,
    "font.size": 9.0,
    "lines.markersize": 4.0,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=COLOURS, linestyle=DASHES, marker=MARKERS),
    "grid.alpha": 0.3,
}
# Where the reader prefers dark: black on white becomes light on dark, and every colour keeps its hue.
DARK = "<style>@media (prefers-color-scheme: dark) { svg { filter: invert(.9) hue-rotate(180deg); } }</style>"
CHARACTERS = 13.5  # of a caption, to an inch
LETTERS = 48  # of a legend, side by side
EMPTY = 4.6, 1.2  # inches of a drawing without panels


def draw_panels(
    draw: Callable[[Sequence[Axes]], None],
    *,
    size: tuple[float, float],
    title: str = "",
    caption: str = "",
    rows: int = 1,
    columns: int = 1,
    **shared: Any,
) -> str:
    """The SVG of a figure of ``size`` inches, whose panels ``draw`` fills, row by row; the same call, the same bytes.

    ``caption`` says below them what is to be seen; without rows or columns that is all. The drawing loads nothing, text
    stays text, and its colours follow the reader's preference for light or dark.
    """
    width, height = size if rows and columns else EMPTY
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        for write, text, given in (
            (figure.suptitle, title, {"weight": "bold", "fontsize": 10}),
            (figure.supxlabel, caption, {"fontsize": 9}),
        ):
            if text:
                lines = textwrap.fill(text, int(CHARACTERS * width * 9 / given["fontsize"]))
                write(lines, x=0.01, horizontalalignment="left", **given)
        if rows and columns:
            draw(list(np.asarray(figure.subplots(rows, columns, squeeze=False, **shared)).flat))
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    return re.sub(r"(<svg[^>]*>)", rf"\1\n {DARK}", text, count=1)


def error_bars(axes: Axes, x: Sequence[float], values: Sequence[Estimate], label: str, **given: Any) -> None:
    """Values with their intervals, as a line unless ``given`` says otherwise; ``scale`` multiplies them."""
    scale = given.pop("scale", 1.0)
    below = [scale * max(0.0, one.value - one.low) for one in values]
    above = [scale * max(0.0, one.high - one.value) for one in values]
    style = {"capsize": 2, **given}
    axes.errorbar(x, [scale * one.value for one in values], yerr=(below, above), label=label, **style)


def series(at: int) -> dict[str, Any]:
    """Colour, dashes and marker of what is the same in several panels, by its place among all.

    Where there are more than colours, markers of every other round are hollow.
    """
    turn, at = divmod(at, len(COLOURS))
    hollow = {"markerfacecolor": "none"} if turn % 2 else {}
    return {"color": COLOURS[at], "linestyle": DASHES[at], "marker": MARKERS[at], **hollow}


def baseline(axes: Axes, value: float = 1.0) -> None:
    """A black line where both sides are equal."""
    axes.axhline(value, color="black", linewidth=0.8)


def powers_of_two(axes: Axes, ticks: Sequence[int], labels: Sequence[str] | None = None) -> None:
    """A logarithmic x axis with these ticks alone."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, labels=list(map(str, ticks)) if labels is None else labels)
    axes.xaxis.set_minor_locator(NullLocator())


def plain_log(axis: Axis) -> None:
    """A logarithmic ``axis`` with ticks at 1, 2 and 5 of every decade, written as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def left_out(num_void: int, num_all: int, what: str = "cells") -> str:
    """What a caption says, behind its other sentences, of what is void."""
    return f" Left out: {num_void} of {num_all} {what}, which are void." if num_void else ""


def finish(axes: Axes, *, x: str = "", y: str = "", title: str = "", columns: int = 2) -> None:
    """Labels, and above the panel, where it hides nothing, its title and a legend of what has a label."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        axes.set_title(title, loc="left", fontsize=9)
        return
    if max(map(len, labels)) > LETTERS // columns:  # else the panel would shrink to make room
        columns = 1
    axes.legend(
        handles,
        [textwrap.fill(label, LETTERS) for label in labels],
        title=title or None,
        ncols=columns,
        fontsize=8.5,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        alignment="left",
        borderpad=0,
        frameon=False,
    )
