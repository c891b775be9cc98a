"""SVG drawings: a style, panels, and lines with intervals. Needs matplotlib; measures and computes nothing."""

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from paceline.bench.statistics import Estimate

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "paceline",
    "text.parse_math": False,
    "font.size": 9.0,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


def draw_panels(
    draw: Callable[[Sequence[Axes]], None],
    *,
    size: tuple[float, float],
    title: str | None = None,
    rows: int = 1,
    columns: int = 1,
    **shared: Any,
) -> str:
    """The SVG of a figure of ``size`` inches, whose panels ``draw`` fills, row by row; the same call, the same bytes.

    The drawing loads nothing; text stays text.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        if title is not None:
            figure.suptitle(title)
        draw(list(np.asarray(figure.subplots(rows, columns, squeeze=False, **shared)).flat))
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def error_bars(axes: Axes, x: Sequence[float], values: Sequence[Estimate], label: str, **given: Any) -> None:
    """Values with their intervals, as a line unless ``given`` says otherwise; ``scale`` multiplies them."""
    scale = given.pop("scale", 1.0)
    below = [scale * max(0.0, one.value - one.low) for one in values]
    above = [scale * max(0.0, one.high - one.value) for one in values]
    style = {"marker": "o", "capsize": 3, **given}
    axes.errorbar(x, [scale * one.value for one in values], yerr=(below, above), label=label, **style)


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


def finish(axes: Axes, *, x: str = "", y: str = "") -> None:
    """Labels, and a legend where something has a label."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
