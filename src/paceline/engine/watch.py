"""Measures during decoding whether drafting pays: a few steps are taken without a draft and timed.

Only for verifiers whose tokens do not depend on the draft, so that outputs stay the same. Which steps are plain depends
on the number of steps alone, never on tokens.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import final

from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.core.step import StepPlan, StepResult
from paceline.core.tree import NoDraft

FIRST = 16  # drafted steps before the first plain ones, so that short outputs cost nothing
PERIOD = 128
PLAIN_STEPS = 2  # the first is a warm-up, the second is timed
MARGIN = 0.95  # drafting counts as slower below this share of plain speed; above, the difference may be noise
ENOUGH = 8  # drafted steps before a speed is reported


@dataclass(slots=True)
class _Timed:
    """Steps with the same number of running rows."""

    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0
    plain: list[float] = field(default_factory=list[float])


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Tokens per second of all rows together, with drafts and with plain steps."""

    drafted: float
    plain: float

    @property
    def pays(self) -> bool:
        """Whether drafting was not slower, up to ``MARGIN``."""
        return self.drafted >= MARGIN * self.plain

    @property
    def warning(self) -> str | None:
        """The warning for the user if drafting does not pay."""
        if self.pays:
            return None
        return (
            f"drafting gives {self.drafted:.1f} tokens/s where plain decoding would give {self.plain:.1f}: "
            "lower num_draft_tokens, take another drafter, or none"
        )


@final
class SpeedCount:
    """Adds up what steps gained and took, and what plain decoding would have taken for it."""

    def __init__(self) -> None:
        self._tokens, self._seconds, self._plain_seconds = 0, 0.0, 0.0

    def add(self, tokens: int, seconds: float, *, plain_seconds: float) -> None:
        """Count some steps."""
        self._tokens += tokens
        self._seconds += seconds
        self._plain_seconds += plain_seconds

    @property
    def speed(self) -> Speed | None:
        """Of all steps; None where no time was measured."""
        if not (self._seconds and self._plain_seconds):
            return None
        return Speed(drafted=self._tokens / self._seconds, plain=self._tokens / self._plain_seconds)


@final
class Watch(Plan):
    """Follows another plan, except for a few plain steps that are timed."""

    def __init__(self, *, plan: Plan) -> None:
        self._plan = plan
        self._timed: defaultdict[int, _Timed] = defaultdict(_Timed)  # by rows
        self._count = 0  # steps planned

    @property
    def max_draft_tokens(self) -> int:
        return self._plan.max_draft_tokens

    def __call__(self) -> StepPlan:
        """The plan's choice, or no draft."""
        done, self._count = self._count, self._count + 1
        turn = (done - FIRST) % PERIOD if done >= FIRST else PERIOD + done
        if turn < PLAIN_STEPS:
            return StepPlan(0, off=NoDraft.MEASURED, turn=turn)
        return replace(self._plan(), turn=turn)

    def admit(self, rows: Sequence[int], requests: Sequence[Request], *, waiting: int = 0) -> None:
        """As the plan."""
        self._plan.admit(rows, requests, waiting=waiting)

    def release(self, rows: Iterable[int]) -> None:
        """As the plan."""
        self._plan.release(rows)

    def observe(self, result: StepResult) -> None:
        """Add the step's seconds and tokens to the totals of its number of rows."""
        self._plan.observe(result)
        rows, turn, seconds = result.num_running, result.plan.turn, result.seconds.total
        if not rows or turn is None:
            return
        timed = self._timed[rows]
        if result.plan.off is NoDraft.MEASURED:
            if turn == PLAIN_STEPS - 1:  # earlier ones are warm-up
                timed.plain.append(seconds)
        elif turn != PLAIN_STEPS and turn - PERIOD not in range(PLAIN_STEPS):  # the drafter catches up in these steps
            timed.seconds += seconds
            timed.tokens += result.num_tokens
            timed.steps += 1

    @property
    def speed(self) -> Speed | None:
        """Both speeds, over the numbers of rows that were measured both ways; None before enough steps."""
        seen = [(rows, timed) for rows, timed in self._timed.items() if timed.plain and timed.steps >= ENOUGH]
        seconds = sum(timed.seconds for _, timed in seen)
        if not seconds:
            return None
        tokens = sum(timed.tokens for _, timed in seen)
        plain_seconds = sum(timed.tokens * median(timed.plain) / rows for rows, timed in seen)
        return Speed(drafted=tokens / seconds, plain=tokens / plain_seconds)
