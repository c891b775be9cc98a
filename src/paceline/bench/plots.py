"""The drawings of a report of paceline bench, to be placed in a page. Needs matplotlib; computes nothing."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from paceline.bench.drawing import baseline, draw_panels, error_bars, finish, powers_of_two
from paceline.bench.figures import best
from paceline.bench.interleaved import plain_cell
from paceline.bench.line import PHASES, Line
from paceline.bench.sweep import PLAIN

SIZE = (6.4, 3.4)  # inches


def drawings_of(figures: Sequence[Line]) -> list[tuple[str, str]]:
    """Captions and drawings of cells that are not void; none for no cells."""
    if not figures:
        return []
    several = len({line.cell.batch_size for line in figures}) > 1
    chosen: list[tuple[str, Callable[[Axes, Sequence[Line]], None]]] = [
        ("Speed-up over the draft length; bars are 95 % intervals.", speedup_over_k),
        *(
            [("Speed-up over the batch size, each drafter at its best length for the smallest.", speedup_over_batch)]
            if several
            else []
        ),
        ("Acceptance by position in the draft, of the positions that were drafted.", acceptance_by_position),
        ("Where a step's time goes.", time_split),
    ]
    return [
        (caption, _inline(draw_panels(lambda axes, draw=draw: draw(axes[0], figures), size=SIZE)))
        for caption, draw in chosen
    ]


def speedup_over_k(axes: Axes, figures: Sequence[Line]) -> None:
    """Speed-up over the draft length at the smallest batch size, one line per drafter, with intervals."""
    smallest = min(line.cell.batch_size for line in figures)
    for name, lines in _by_drafter(line for line in figures if line.cell.batch_size == smallest).items():
        lines = sorted(lines, key=lambda line: line.cell.num_draft_tokens)
        if lines[0].cell.num_draft_tokens == 0:
            axes.axhline(lines[0].speedup.value, linestyle=":", label=name, color="0.4")
            continue
        error_bars(axes, [line.cell.num_draft_tokens for line in lines], [line.speedup for line in lines], name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    finish(axes, x=f"draft tokens per step (k), batch {smallest}", y="speed-up over plain")
    baseline(axes)


def speedup_over_batch(axes: Axes, figures: Sequence[Line]) -> None:
    """Speed-up over the batch size, every drafter at its best length for the smallest batch; 1 is break-even."""
    smallest = min(line.cell.batch_size for line in figures)
    chosen = {
        line.cell.method: line.cell.num_draft_tokens for line in best(figures) if line.cell.batch_size == smallest
    }
    for name, lines in _by_drafter(figures).items():
        count = chosen.get(name)
        kept = sorted(
            (line for line in lines if count and line.cell.num_draft_tokens == count),
            key=lambda line: line.cell.batch_size,
        )
        if kept:
            sizes = [line.cell.batch_size for line in kept]
            error_bars(axes, sizes, [line.speedup for line in kept], f"{name}, k={count}")
    powers_of_two(axes, sorted({line.cell.batch_size for line in figures}))
    baseline(axes)
    axes.text(1, 1, " break-even", transform=axes.get_yaxis_transform(), va="center", fontsize=8)
    finish(axes, x="batch size", y="speed-up over plain")


def acceptance_by_position(axes: Axes, figures: Sequence[Line]) -> None:
    """Share of drafted tokens that were accepted, by their place in the draft, for every drafter's longest draft."""
    for name, lines in _by_drafter(line for line in figures if line.by_position).items():
        longest = max(lines, key=lambda line: (line.cell.num_draft_tokens, -line.cell.batch_size))
        positions = range(1, len(longest.by_position) + 1)
        axes.plot(positions, longest.by_position, marker="o", label=f"{name}, k={longest.cell.num_draft_tokens}")
    axes.set_ylim(0, 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    finish(axes, x="position in the draft", y="accepted of those drafted there")


def time_split(axes: Axes, figures: Sequence[Line]) -> None:
    """Milliseconds of a step by phase, for plain decoding and every drafter and length at the smallest batch size."""
    smallest = min(line.cell.batch_size for line in figures)
    timed = [line for line in figures if line.cell.batch_size == smallest and line.step_seconds]
    bars: dict[str, tuple[float, ...]] = {}
    for line in timed:
        bars.setdefault(plain_cell(line.cell).way, line.base_step_seconds)
    bars |= {line.cell.way.replace("k=", ""): line.step_seconds for line in timed if line.cell.drafter != PLAIN}
    bottom = [0.0] * len(bars)
    for at, phase in enumerate(PHASES):
        heights = [1e3 * seconds[at] for seconds in bars.values()]
        axes.bar(range(len(bars)), heights, bottom=bottom, label=phase)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_xticks(range(len(bars)), labels=list(bars), rotation=60, ha="right")
    finish(axes, y=f"ms per step, batch {smallest}")


def _by_drafter(figures: Iterable[Line]) -> dict[str, list[Line]]:
    found: defaultdict[str, list[Line]] = defaultdict(list)
    for line in figures:
        found[line.cell.method].append(line)
    return found


def _inline(svg: str) -> str:
    """A drawing to be placed in a page."""
    return re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
