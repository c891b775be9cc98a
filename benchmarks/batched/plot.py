"""What lock-step and realignment cost over the rows of a batch, as an SVG drawing. Needs matplotlib."""

from collections.abc import Callable, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.batched.table import BatchedFigures
from paceline.bench.plots import STYLE, to_svg
from paceline.bench.statistics import Estimate

SIZE = (3.6, 3.4)  # inches of a panel


def draw(figures: Sequence[BatchedFigures], *, title: str) -> str:
    """A panel of times for every runtime, and one of tokens a step, over the rows; lines for each draft length."""
    runtimes = list(dict.fromkeys(line.cell.runtime for line in figures))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(SIZE[0] * (len(runtimes) + 1), SIZE[1]), layout="constrained")
        figure.suptitle(title)
        panels = figure.subplots(1, len(runtimes) + 1, squeeze=False)[0]
        for axes, runtime in zip(panels, runtimes, strict=False):
            _times(axes, [line for line in figures if line.cell.runtime == runtime])
            axes.set_title(runtime)
        panels[0].set_ylabel("time of a batch over that per row")
        _tokens(panels[-1], [line for line in figures if line.cell.runtime == runtimes[0]])
        panels[-1].set_title("tokens a step")
        return to_svg(figure)


def _times(axes: Axes, figures: Sequence[BatchedFigures]) -> None:
    for count, lines in _by_length(figures):
        _estimates(axes, lines, lambda line: line.locked, f"lock-step, k = {count}")
        if all(line.realigned is not None for line in lines):
            _estimates(axes, lines, lambda line: line.realigned or line.control, f"realigned, k = {count}")
    axes.axhline(1, color="black", linewidth=0.8)
    _finish(axes, figures)


def _tokens(axes: Axes, figures: Sequence[BatchedFigures]) -> None:
    for count, lines in _by_length(figures):
        rows = [line.cell.num_rows for line in lines]
        axes.plot(rows, [line.tokens_per_step for line in lines], marker="o", label=f"per row, k = {count}")
        axes.plot(rows, [line.locked_tokens_per_step for line in lines], marker="o", label=f"lock-step, k = {count}")
        model = [line.model_tokens_per_step for line in lines]
        axes.plot(rows, model, linestyle=":", color="0.4", label=rf"alpha^B, k = {count}")
    _finish(axes, figures)


def _estimates(
    axes: Axes, lines: Sequence[BatchedFigures], of: Callable[[BatchedFigures], Estimate], name: str
) -> None:
    values = [of(line) for line in lines]
    below = [max(0.0, one.value - one.low) for one in values]
    above = [max(0.0, one.high - one.value) for one in values]
    rows = [line.cell.num_rows for line in lines]
    axes.errorbar(rows, [one.value for one in values], yerr=(below, above), marker="o", capsize=3, label=name)


def _by_length(figures: Sequence[BatchedFigures]) -> list[tuple[int, list[BatchedFigures]]]:
    """The figures of each draft length, by rows."""
    ordered = sorted(figures, key=lambda line: line.cell.num_rows)
    counts = sorted({line.cell.num_draft_tokens for line in figures})
    return [(count, [line for line in ordered if line.cell.num_draft_tokens == count]) for count in counts]


def _finish(axes: Axes, figures: Sequence[BatchedFigures]) -> None:
    rows = sorted({line.cell.num_rows for line in figures})
    axes.set_xscale("log", base=2)
    axes.set_xticks(rows, [str(count) for count in rows])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("rows")
    axes.legend(fontsize=8)
