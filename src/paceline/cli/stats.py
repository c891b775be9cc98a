"""Drafting statistics, summed over outputs and shown as a table."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.table import Table

from paceline.api import Result
from paceline.cli.draft_options import as_options
from paceline.core.stats import StageSummary, Summary
from paceline.engine.costs import DepthCost
from paceline.engine.outputs import Times
from paceline.engine.watch import Speed


@dataclass(slots=True, kw_only=True)
class Totals:
    """Sums over the outputs added so far."""

    num_outputs: int = 0
    summary: Summary | None = None
    no_draft: Counter[str] = field(default_factory=Counter[str])
    first_tokens: list[float] = field(default_factory=list[float])  # seconds
    times: Times | None = None  # of a single output, or None
    lengths: Counter[int] = field(default_factory=Counter[int])  # steps by the draft length that was allowed
    explored: int = 0  # of these
    costs: tuple[DepthCost, ...] = ()  # of the last output
    speed: Speed | None = None
    lossless: bool = True
    stages: list[StageSummary] = field(default_factory=list[StageSummary])

    @classmethod
    def of(cls, results: Iterable[Result]) -> "Totals":
        """Sums over ``results``."""
        totals = cls()
        for result in results:
            totals.add(result)
        return totals

    def add(self, result: Result) -> None:
        """Add one output."""
        stats = result.stats
        self.summary = stats.summary if self.summary is None else self.summary + stats.summary
        pairs = zip(self.stages, stats.stages, strict=False)  # an output without a step has none
        self.stages = [one + more for one, more in pairs] or self.stages or list(stats.stages)
        self.no_draft.update(stats.no_draft)
        if stats.times.first_token is not None:
            self.first_tokens.append(stats.times.first_token)
        self.times = stats.times if self.num_outputs == 0 else None
        self.num_outputs += 1
        self.lengths.update(stats.draft_lengths.steps)
        self.explored += stats.draft_lengths.explored
        self.costs = stats.costs or self.costs
        self.speed, self.lossless = stats.speed, stats.lossless


def describe_stage(stage: StageSummary) -> str:
    """What a stage drafted, of which how much was accepted, and what it gained."""
    counts, by = stage.summary, "the target" if stage.drafts_for_target else "the draft model"
    drafted = sum(counts.drafted)
    share = f"{counts.acceptance_rate:.0%} of {drafted} tokens accepted by {by}" if drafted else "no token drafted"
    gained = "" if stage.drafts_for_target else f"; {counts.mean_acceptance_length:.2f} tokens per draft model forward"
    return f"{stage.name}: {share}{gained}"


def stats_table(totals: Totals, *, seconds: float) -> Table:
    """``seconds`` is what generating took in all, loading aside."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    counts = totals.summary
    if counts is None or not counts.steps:
        table.add_row("outputs", "none")
        return table
    if totals.num_outputs > 1:
        table.add_row("outputs", str(totals.num_outputs))
    table.add_row("tokens", f"{counts.emitted} in {seconds:.2f} s: {counts.emitted / seconds:.1f} tokens/s")
    table.add_row("target steps", f"{counts.steps}, counted per sequence")
    table.add_row("tokens/step", f"{counts.mean_acceptance_length:.2f} = tokens / target steps; 1.00 is plain decoding")
    if sum(counts.drafted):
        table.add_row(
            "accepted",
            f"{counts.acceptance_rate:.0%} of the drafted tokens: {sum(counts.accepted)} of {sum(counts.drafted)}",
        )
        rates = " ".join(f"{rate:.2f}" for rate in counts.per_position_acceptance)
        table.add_row("by position", f"{rates} of those drafted at depth 1, 2, ...")
    for stage in totals.stages:
        table.add_row("stage", describe_stage(stage))
    if totals.no_draft:
        reasons = ", ".join(f"{reason} {count}" for reason, count in totals.no_draft.most_common())
        table.add_row("without draft", f"{sum(totals.no_draft.values())} steps: {reasons}")
    if totals.first_tokens:
        mean = sum(totals.first_tokens) / len(totals.first_tokens)
        table.add_row("first token", f"after {mean:.3f} s{' on average' if totals.num_outputs > 1 else ''}")
    if totals.times is not None:
        phases = ((name, getattr(totals.times, name)) for name in ("prefill", "draft", "score", "decide", "rest"))
        table.add_row("time", ", ".join(f"{name} {spent:.3f} s" for name, spent in phases))
    if totals.speed is not None:
        table.add_row("measured", f"{totals.speed.drafted:.1f} tokens/s drafted, {totals.speed.plain:.1f} plainly")
        if totals.speed.warning is not None:
            table.add_row("warning", as_options(totals.speed.warning))
    if not totals.lossless:
        table.add_row("warning", "this verifier is lossy: the output may differ from plain decoding")
    return table
