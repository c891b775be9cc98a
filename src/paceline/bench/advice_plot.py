"""The picture of an advice: speed-up by draft length, a panel for every batch size. Needs matplotlib."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from paceline.bench.advice import Advice
from paceline.bench.drawing import baseline, draw_panels, error_bars, finish

PANEL = (5.2, 3.4)  # inches


def draw_advice(advice: Sequence[Advice], imagined: Sequence[Advice] = (), *, what_if: str = "") -> str:
    """The SVG of ``advice``; the lines of ``imagined``, on the machine ``what_if``, are dashed."""
    sizes = sorted({one.setting.batch_size for one in advice})

    def draw(panels: Sequence[Axes]) -> None:
        for axes, size in zip(panels, sizes, strict=True):
            _draw_panel(axes, [one for one in advice if one.setting.batch_size == size], label="{}", style="-")
            there = [one for one in imagined if one.setting.batch_size == size]
            _draw_panel(axes, there, label=f"{{}}, {what_if}", style="--")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            baseline(axes)
            finish(axes, x="draft tokens per step", y="speed-up over plain decoding", title=f"batch size {size}")

    return draw_panels(draw, size=(PANEL[0] * len(sizes), PANEL[1]), columns=len(sizes))


def _draw_panel(axes: Axes, advice: Sequence[Advice], *, label: str, style: str) -> None:
    """A line for every drafter and temperature."""
    temperatures = {one.setting.temperature for one in advice}
    for one in advice:
        setting = one.setting
        name = setting.drafter if len(temperatures) < 2 else f"{setting.drafter}, temperature {setting.temperature:g}"
        depths = [cost.depth for cost in one.depths]
        error_bars(axes, depths, one.speedups, label.format(name), linestyle=style)
