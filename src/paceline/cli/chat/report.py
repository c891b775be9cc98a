"""What is said of an answer: how fast it came, and what plain decoding would have taken for it."""

from dataclasses import dataclass, field
from typing import final

from paceline.api import Result
from paceline.cli.chat.answering import Drafting
from paceline.cli.stats import Totals

LENGTH = "length"  # why an answer ended


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """``tokens`` in ``seconds`` of decoding, without reading the conversation and printing. ``plain`` are the seconds
    that plain decoding would have taken, by measured steps; None where none were measured.
    """

    tokens: int = 0
    seconds: float = 0.0
    plain: float | None = None

    def __add__(self, other: "Pace") -> "Pace":
        plain = None if self.plain is None or other.plain is None else self.plain + other.plain
        return Pace(tokens=self.tokens + other.tokens, seconds=self.seconds + other.seconds, plain=plain)


def pace_of(result: Result) -> Pace:
    """How fast ``result`` came."""
    times, tokens = result.stats.times, result.stats.summary.emitted
    seconds = times.draft + times.score + times.decide + times.rest
    step = _plain_step(result)
    return Pace(tokens=tokens, seconds=seconds, plain=None if step is None else tokens * step)


@dataclass(slots=True)
class Tally:
    """All answers with the same drafter and depth; ``seconds`` is what they took, reading and printing included."""

    totals: Totals = field(default_factory=Totals)
    pace: Pace = field(default_factory=lambda: Pace(plain=0.0))
    seconds: float = 0.0

    def add(self, result: Result, seconds: float) -> None:
        """Add one answer."""
        self.totals.add(result)
        self.pace += pace_of(result)
        self.seconds += seconds


def _plain_step(result: Result) -> float | None:
    """Seconds of a step of the engine without a draft, if such steps were measured."""
    stats = result.stats
    for cost in stats.costs:
        if cost.depth == 0:
            return cost.seconds if cost.times_measured else None
    return None if stats.speed is None else 1 / stats.speed.plain


def describe(pace: Pace) -> str:
    """Speed, and the time saved."""
    if not pace.tokens or not pace.seconds:
        return f"{pace.tokens} tokens"
    text = f"{pace.tokens} tokens in {pace.seconds:.2f} s: {pace.tokens / pace.seconds:.0f} tokens/s"
    if pace.plain is None:
        return text
    saved = pace.plain - pace.seconds
    return (
        f"{text}; plainly about {pace.plain:.2f} s: {abs(saved):.2f} s "
        f"{'saved' if saved >= 0 else 'lost'} ({pace.plain / pace.seconds:.2f}x)"
    )


def summary(result: Result, drafting: Drafting, *, max_tokens: int | None) -> str:
    """One line about an answer."""
    pace, counts = pace_of(result), result.stats.summary
    parts = [describe(pace)]
    if sum(counts.drafted):
        parts.append(
            f"{counts.mean_acceptance_length:.2f} tokens per step, {counts.acceptance_rate:.0%} of the drafts accepted"
        )
    elif drafting.on:
        parts.append("nothing drafted")
    if drafting.on and pace.plain is None and pace.tokens:
        parts.append("plain steps not measured yet")
    if result.finish_reason == LENGTH:
        full = max_tokens is None or len(result.token_ids) < max_tokens
        parts.append("the conversation is as long as it can be" if full else f"stopped by max_tokens {max_tokens}")
    return "; ".join(parts)
