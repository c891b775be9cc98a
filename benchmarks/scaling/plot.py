"""Scaling as an SVG drawing: times above, memory below, a column for every axis. Needs matplotlib; computes nothing."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from benchmarks.scaling.steps import CHAIN, TREE
from benchmarks.scaling.study import MIB, MS, PointFigures
from paceline.bench.drawing import draw_panels, error_bars, plain_log, powers_of_two
from paceline.bench.raw import Record

SIZE = (10.0, 6.0)  # inches


def draw(axes: Sequence[tuple[Record, Sequence[PointFigures]]], *, title: str) -> str:
    """Milliseconds of the forward and of the step beside the floor, and MiB of the cache beside what is used."""

    def panels(places: Sequence[Axes]) -> None:
        for column, (axis, lines) in enumerate(axes):
            above, below = places[column], places[len(axes) + column]
            chains = [line for line in lines if line.point.shape == CHAIN]
            trees = [line for line in lines if line.point.shape == TREE]
            x = [getattr(line.point, axis["axis"]) for line in chains]
            style = {"scale": MS, "markersize": 3, "capsize": 2}
            error_bars(above, x, [line.step for line in chains], "step", **style)
            error_bars(above, x, [line.forward for line in chains], "the target's forward", **style)
            if trees:
                at = [line.point.nodes for line in trees]
                error_bars(above, at, [line.step for line in trees], "step, tree", **style)
                error_bars(above, at, [line.forward for line in trees], "forward, tree", **style)
            above.plot(x, [MS * line.floor.seconds for line in chains], color="black", label="floor")
            above.plot(x, [MS * line.floor.memory for line in chains], ":", color="0.4", label="floor of memory")
            for label, name in (("resident growth", "resident"), ("reserved", "cache"), ("used slots", "used")):
                sizes = [line.sizes[f"{name}_bytes"] / MIB for line in chains]
                below.plot(x, sizes, marker="o", markersize=3, label=label)
            for place, what in ((above, "ms"), (below, "MiB")):
                powers_of_two(place, x, [f"{size // 1024}k" if size >= 1024 else str(size) for size in x])
                place.set_yscale("log")
                plain_log(place.yaxis)
                place.set_xlabel(axis["axis"] + (" (void)" if axis["void"] else ""))
                place.set_ylabel(what if column == 0 else "")
                if trees or column == 0:
                    place.legend(fontsize=7)

    return draw_panels(panels, size=SIZE, title=title, rows=2, columns=len(axes))
