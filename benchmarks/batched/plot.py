"""What lock-step and realignment cost over the rows of a batch, as an SVG drawing. Needs matplotlib."""

from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes

from benchmarks.batched.study import SIZE, BatchedFigures
from paceline.bench.drawing import baseline, draw_panels, error_bars, finish, powers_of_two


def draw(figures: Sequence[BatchedFigures], *, title: str) -> str:
    """A panel of times for every runtime, and one of tokens a step."""
    runtimes = list(dict.fromkeys(line.cell.runtime for line in figures))

    def panels(axes: Sequence[Axes]) -> None:
        for place, runtime in zip(axes, runtimes, strict=False):
            _times(place, [line for line in figures if line.cell.runtime == runtime])
            place.set_title(runtime)
        axes[0].set_ylabel("time of a batch over that per row")
        _tokens(axes[-1], [line for line in figures if line.cell.runtime == runtimes[0]])
        axes[-1].set_title("tokens a step")

    columns = len(runtimes) + 1
    return draw_panels(panels, size=(SIZE[0] * columns, SIZE[1]), title=title, columns=columns)


def _times(axes: Axes, figures: Sequence[BatchedFigures]) -> None:
    for count, rows, lines in _by_length(figures):
        error_bars(axes, rows, [line.locked for line in lines], f"lock-step, k = {count}")
        realigned = [line.realigned for line in lines if line.realigned is not None]
        if len(realigned) == len(lines):
            error_bars(axes, rows, realigned, f"realigned, k = {count}")
    baseline(axes)
    _rows(axes, figures)


def _tokens(axes: Axes, figures: Sequence[BatchedFigures]) -> None:
    for count, rows, lines in _by_length(figures):
        axes.plot(rows, [line.tokens_per_step for line in lines], marker="o", label=f"per row, k = {count}")
        axes.plot(rows, [line.locked_tokens_per_step for line in lines], marker="o", label=f"lock-step, k = {count}")
        model = [line.model_tokens_per_step for line in lines]
        axes.plot(rows, model, linestyle=":", color="0.4", label=rf"alpha^B, k = {count}")
    _rows(axes, figures)


def _by_length(figures: Sequence[BatchedFigures]) -> Iterator[tuple[int, list[int], list[BatchedFigures]]]:
    """Each draft length, its numbers of rows and its figures, by rows."""
    for count in sorted({line.cell.num_draft_tokens for line in figures}):
        lines = [line for line in figures if line.cell.num_draft_tokens == count]
        lines.sort(key=lambda line: line.cell.num_rows)
        yield count, [line.cell.num_rows for line in lines], lines


def _rows(axes: Axes, figures: Sequence[BatchedFigures]) -> None:
    powers_of_two(axes, sorted({line.cell.num_rows for line in figures}))
    finish(axes, x="rows")
