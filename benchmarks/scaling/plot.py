"""Scaling as an SVG drawing: times above, memory below, a column for every axis. Needs matplotlib; computes nothing."""

from collections.abc import Callable, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.scaling.figures import MIB, MS, AxisFigures, PointFigures
from benchmarks.scaling.points import CHAIN, TREE
from paceline.bench.plots import STYLE, plain_log, to_svg
from paceline.bench.statistics import Estimate

SIZE = (10.0, 6.0)  # inches


def draw(axes: Sequence[AxisFigures], *, title: str) -> str:
    """Milliseconds of the forward and of the step beside the floor, and MiB of the cache beside what is used."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=SIZE, layout="constrained")
        figure.suptitle(title)
        panels = figure.subplots(2, len(axes), squeeze=False)
        for column, axis in enumerate(axes):
            chains = [line for line in axis.lines if line.point.shape == CHAIN]
            trees = [line for line in axis.lines if line.point.shape == TREE]
            count = _counter(axis.name)
            above, below = panels[0][column], panels[1][column]
            _errors(above, [count(line) for line in chains], "step", [line.step for line in chains])
            _errors(above, [count(line) for line in chains], "the target's forward", [line.forward for line in chains])
            if trees:
                _errors(above, [count(line) for line in trees], "step, tree", [line.step for line in trees])
                _errors(above, [count(line) for line in trees], "forward, tree", [line.forward for line in trees])
            x = [count(line) for line in chains]
            above.plot(x, [MS * line.floor.seconds for line in chains], color="black", label="floor")
            above.plot(x, [MS * line.floor.memory for line in chains], ":", color="0.4", label="floor of memory")
            for label, sizes in (
                ("resident growth", [line.resident_bytes for line in chains]),
                ("reserved", [line.cache_bytes for line in chains]),
                ("used slots", [line.used_bytes for line in chains]),
            ):
                below.plot(x, [size / MIB for size in sizes], marker="o", markersize=3, label=label)
            for place, what in ((above, "ms"), (below, "MiB")):
                place.set_xscale("log", base=2)
                place.set_yscale("log")
                plain_log(place.yaxis)
                place.set_xticks(x, labels=[f"{size // 1024}k" if size >= 1024 else str(size) for size in x])
                place.set_xlabel(axis.name + (" (void)" if axis.void else ""))
                place.set_ylabel(what if column == 0 else "")
                if trees or column == 0:
                    place.legend(fontsize=7)
        return to_svg(figure)


def _counter(name: str) -> Callable[[PointFigures], int]:
    counters: dict[str, Callable[[PointFigures], int]] = {
        "rows": lambda line: line.point.rows,
        "nodes": lambda line: line.point.nodes,
        "context": lambda line: line.point.context,
    }
    return counters[name]


def _errors(place: Axes, x: Sequence[int], label: str, values: Sequence[Estimate]) -> None:
    place.errorbar(
        x,
        [MS * one.value for one in values],
        yerr=([MS * (one.value - one.low) for one in values], [MS * (one.high - one.value) for one in values]),
        marker="o",
        markersize=3,
        capsize=2,
        label=label,
    )
