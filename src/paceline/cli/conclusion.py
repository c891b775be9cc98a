"""The end of ``paceline demo``: what every drafter gained, as a table with bars, and whether drafting pays."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from paceline.bench.runner import Comparison, Measured
from paceline.bench.statistics import Estimate, pooled_ratio
from paceline.engine.costs import DepthCost

NAME, BAR = 11, 10  # characters of a name that is not folded, and of the longest bar
FASTER, SLOWER = "green", "bold red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """What one configuration gained over plain decoding."""

    measured: Measured
    ratio: Estimate  # plain seconds over its own, over all prompts and repeats
    seconds_per_step: float | None

    @property
    def name(self) -> str:
        """Of the configuration."""
        return self.measured.name

    @property
    def tokens_per_step(self) -> float:
        """Accepted ones, and the target's own."""
        summary = self.measured.sample.summary
        return 1.0 if summary is None else summary.mean_acceptance_length


def speedups(comparison: Comparison) -> list[Speedup]:
    """What every configuration gained over the baseline, in the order given.

    The same prompt of the same repeat is one pair of times; the interval is over these.
    """
    base = list(chain.from_iterable(comparison[comparison.baseline].part_seconds))
    found: list[Speedup] = []
    for measured in comparison.measured:
        own = list(chain.from_iterable(measured.part_seconds))
        steps = sum(sample.summary.steps for sample in measured.samples if sample.summary is not None)
        found.append(
            Speedup(
                measured=measured,
                ratio=pooled_ratio(base, own),
                seconds_per_step=sum(own) / steps if steps else None,
            )
        )
    return found


def best_of(found: Sequence[Speedup]) -> Speedup:
    """The fastest that drafts; of several, one that is faster for sure."""
    drafting = found[1:]
    return max(drafting, key=lambda one: (one.ratio.low > 1, one.ratio.value))


def speedup_table(found: Sequence[Speedup]) -> Table:
    """A line for every configuration, the baseline first, with a bar; those below 1 are marked."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("", overflow="fold", min_width=NAME)
    for title in ("tokens/s", "tokens/step", "accepted", "speed-up", "interval"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("")
    most = max(one.ratio.value for one in found)
    for number, one in enumerate(found):
        rate, ratio = one.measured.acceptance_rate, one.ratio
        slower = ratio.value < 1
        style = "" if number == 0 else SLOWER if slower else FASTER
        bar = ProgressBar(total=most, completed=ratio.value, width=BAR, complete_style=style, finished_style=style)
        table.add_row(
            one.name,
            f"{one.measured.tokens_per_second.median:.0f}",
            f"{one.tokens_per_step:.2f}",
            "" if rate is None else f"{rate:.0%}",
            Text(f"{ratio.value:.2f}x{' <1' if slower else ''}", style, justify="right"),
            f"{ratio.low:.2f} to {ratio.high:.2f}" if number else "",
            bar,
        )
    return table


def conclusion(found: Sequence[Speedup], option: str, costs: Sequence[DepthCost]) -> str:
    """Whether drafting pays, with what; or why not, and what would.

    ``option`` is how ``paceline generate`` is given the best drafter, ``costs`` what its steps cost and promise by
    their draft length, where a controller knows.
    """
    best = best_of(found)
    ratio = best.ratio
    with_it = f"with {best.name} ({option})"
    if ratio.low > 1:
        return (
            f"drafting pays here: {ratio.value:.2f}x {with_it}, at least {ratio.low:.2f}x (95 % interval); "
            f"{best.tokens_per_step:.2f} tokens per step instead of 1"
        )
    if ratio.high >= 1:
        so_far = (
            f"no drafter is measurably faster here: {ratio.value:.2f}x ({ratio.low:.2f} to {ratio.high:.2f}) {with_it}"
        )
    else:
        so_far = f"drafting does not pay here: the best gives {ratio.value:.2f}x, {with_it}"
    return f"{so_far}. {_reason(found[0], best, costs)}"


def _reason(plain: Speedup, best: Speedup, costs: Sequence[DepthCost]) -> str:
    drafted = [cost for cost in costs if cost.depth and cost.times_measured]
    if drafted:
        cost = max(drafted, key=lambda cost: cost.expected / cost.break_even)
        needed, expected, most = cost.break_even, cost.expected, float(cost.depth + 1)
        subject = f"A step with {cost.depth} draft token{'s' if cost.depth > 1 else ''}"
    else:
        assert plain.seconds_per_step is not None and best.seconds_per_step is not None
        needed, expected = best.seconds_per_step / plain.seconds_per_step, best.tokens_per_step
        summary = best.measured.sample.summary
        most = 1.0 + (0 if summary is None else sum(map(bool, summary.drafted)))
        subject = "A step with a draft"
    why = f"{subject} takes {needed:.2f} times as long as one without, so it pays from {needed:.2f} tokens, "
    why += f"and gives {expected:.2f}"
    if expected >= needed and best.ratio.high < 1:
        return f"{why}: it may pay over longer outputs than these, which `paceline advise` estimates"
    if expected >= needed:
        return f"{why}: too near to tell. `paceline advise` measures for longer, and a larger target gains more"
    if needed < most:
        return f"{why}. A drafter whose tokens are accepted more often would pay, or a larger target for this one"
    return f"{why} of at most {most:.0f}. A cheaper drafter would pay, or a larger target for this one"
