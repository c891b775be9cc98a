"""What resuming gains, as an SVG drawing: a panel for every context, a line for every batch. Needs matplotlib."""

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.resume.table import ResumeFigures
from paceline.bench.plots import STYLE, to_svg

SIZE = (3.6, 3.4)  # inches of a panel


def draw(figures: Sequence[ResumeFigures], *, title: str) -> str:
    """Gain over the exit's layer; 1 is where resuming costs as much as it spares."""
    contexts = sorted({line.cell.context for line in figures})
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(SIZE[0] * len(contexts), SIZE[1]), layout="constrained")
        figure.suptitle(title)
        panels = figure.subplots(1, len(contexts), squeeze=False, sharey=True)[0]
        for axes, context in zip(panels, contexts, strict=True):
            _panel(axes, [line for line in figures if line.cell.context == context])
            axes.set_title(f"{context} tokens of context")
        panels[0].set_ylabel("time of a step: whole over resumed")
        return to_svg(figure)


def _panel(axes: Axes, lines: Sequence[ResumeFigures]) -> None:
    for rows in sorted({line.cell.num_rows for line in lines}):
        own = sorted((line for line in lines if line.cell.num_rows == rows), key=lambda line: line.cell.exit_layer)
        values = [line.gain.value for line in own]
        below = [max(0.0, line.gain.value - line.gain.low) for line in own]
        above = [max(0.0, line.gain.high - line.gain.value) for line in own]
        name = f"{rows} row{'s' if rows > 1 else ''}"
        axes.errorbar(
            [line.cell.exit_layer for line in own], values, yerr=(below, above), marker="o", capsize=3, label=name
        )
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xlabel("layers before the exit")
    axes.legend(fontsize=8)
