"""What a device does as an SVG drawing. Needs matplotlib; measures and computes nothing."""

from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure

from benchmarks.gpu.figures import BatchFigures
from paceline.bench.peers.transformers import PLAIN as PEER
from paceline.bench.plots import STYLE, plain_log, to_svg

SIZE = (9.0, 3.8)  # inches


def draw(figures: Sequence[BatchFigures], *, title: str) -> str:
    """Left, tokens per second over the batch size beside the limit; right, speed-ups with intervals."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=SIZE, layout="constrained")
        figure.suptitle(title)
        left, right = figure.subplots(1, 2)
        sizes = [line.batch for line in figures]
        left.plot(sizes, [line.limit for line in figures], color="black", label="limit of plain decoding")
        left.plot(sizes, [line.plain for line in figures], marker="o", label="plain")
        left.plot(sizes, [line.drafted for line in figures], marker="o", label="drafted")
        left.set_yscale("log")
        plain_log(left.yaxis)
        left.set_ylabel("tokens per second")
        for label, points in (
            ("drafted over plain", [(line.batch, line.over_plain) for line in figures]),
            (f"drafted over {PEER}", [(line.batch, line.over_peer) for line in figures]),
            (f"plain over {PEER}", [(line.batch, line.plain_over_peer) for line in figures]),
            (
                f"drafted over {PEER}-assisted",
                [(line.batch, line.over_assisted) for line in figures if line.over_assisted is not None],
            ),
        ):
            right.errorbar(
                [batch for batch, _ in points],
                [found.value for _, found in points],
                yerr=(
                    [found.value - found.low for _, found in points],
                    [found.high - found.value for _, found in points],
                ),
                marker="o",
                capsize=2,
                label=label,
            )
        right.axhline(1, color="black", linewidth=0.8)
        right.set_ylabel("times as fast")
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes, labels=list(map(str, sizes)))
            axes.set_xlabel("batch size")
            axes.legend(fontsize=7)
        return to_svg(figure)
