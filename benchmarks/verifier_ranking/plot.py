"""The ranking of verifiers as an SVG drawing. Needs matplotlib; measures and computes nothing."""

from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure

from benchmarks.verifier_ranking.figures import Ranking, verifiers_of
from paceline.bench.plots import STYLE, to_svg

SIZE = (7.2, 5.6)  # inches


def draw(rankings: Sequence[Ranking], *, title: str) -> str:
    """Above, the speed-up of every verifier at its fastest shape; below, its most tokens per step. With intervals."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=SIZE, layout="constrained")
        figure.suptitle(title)
        above, below = figure.subplots(2, sharex=True)
        names = verifiers_of(rankings)
        for place, name in enumerate(names):
            shift = 0.11 * (place - (len(names) - 1) / 2)
            fastest = [(at, ranking.best(name)) for at, ranking in enumerate(rankings)]
            longest = [(at, ranking.longest(name)) for at, ranking in enumerate(rankings)]
            for axes, points in (
                (above, [(at + shift, placed.speedup) for at, placed in fastest if placed is not None]),
                (below, [(at + shift, placed.tokens_per_step) for at, placed in longest if placed is not None]),
            ):
                axes.errorbar(
                    [at for at, _ in points],
                    [found.value for _, found in points],
                    yerr=(
                        [found.value - found.low for _, found in points],
                        [found.high - found.value for _, found in points],
                    ),
                    fmt="o",
                    markersize=4,
                    capsize=2,
                    label=name,
                )
        above.axhline(1, color="black", linewidth=0.8)
        above.set_ylabel("speed-up over plain")
        below.set_ylabel("tokens per step, at most")
        below.set_xticks(range(len(rankings)), labels=[ranking.name.replace(", ", "\n") for ranking in rankings])
        above.legend(fontsize=8, ncols=3)
        return to_svg(figure)
