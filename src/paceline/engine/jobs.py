"""What is known of a request on its way through the rows, and what is told of it. Knows no rows but its own."""

import time
from collections import Counter
from dataclasses import dataclass, field

from paceline.core.batch import Finish
from paceline.core.logprobs import TokenLogprobs
from paceline.core.request import Request
from paceline.core.stats import Summary
from paceline.core.tree import NoDraft
from paceline.engine.clock import Phases
from paceline.engine.reports import Told
from paceline.engine.watch import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Where a request's time went, in seconds. A step's time counts for every request that took part in it."""

    queue: float  # from submission to admission
    prefill: float  # reading the prompt, together with those admitted at once
    first_token: float | None  # from submission to the end of the step that gave the first token
    total: float  # from submission to the end
    draft: float
    target: float
    verify: float
    rest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """What is known of a request when it leaves."""

    summary: Summary
    no_draft: Counter[NoDraft]  # steps without a draft, by reason; OFF includes the steps taken to measure
    num_measured: int  # of those, the steps taken plainly to learn what drafting costs
    times: Times


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What one request got in a step; ``error`` instead if it could not be admitted, or a rule of its own raised."""

    ticket: int
    tokens: list[int] = field(default_factory=list[int])
    num_accepted: int = 0  # of the tokens, the drafted ones, which come first
    num_drafted: int = 0
    bonus: bool = False  # the own token followed a whole draft
    origins: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    finish: Finish = Finish.RUNNING
    error: Exception | None = None


@dataclass(slots=True, kw_only=True)
class Job:
    """A request that waits, runs, or has left; what is told of it, step by step."""

    ticket: int
    request: Request
    submitted: float
    row: int = -1
    admitted: float = 0.0
    prefill: float = 0.0
    first_token: float | None = None
    phases: list[float] = field(default_factory=lambda: [0.0] * 4)
    no_draft: Counter[NoDraft] = field(default_factory=Counter[NoDraft])
    num_measured: int = 0
    num_told: int = 0  # tokens
    told: Told | None = None  # the last step that it was told of

    def tell(self, told: Told, *, phases: Phases, now: float, turn: Turn | None) -> Gain:
        """What it got in a step whose report has been read at ``now``."""
        row, report = self.row, told.report
        self.told = told
        self.num_told += report.num[row]
        if self.first_token is None:
            self.first_token = now - self.submitted
        for phase, seconds in enumerate(phases):
            self.phases[phase] += seconds
        reason = report.no_draft[row]
        if reason is not NoDraft.DRAFTED:
            self.no_draft[reason] += 1
            self.num_measured += reason is NoDraft.OFF and turn is not None and turn.is_plain
        return Gain(
            ticket=self.ticket,
            tokens=report.tokens[row],
            num_accepted=report.accepted[row],
            num_drafted=report.drafted[row],
            bonus=report.bonus[row],
            origins=report.origin[row],
            logprobs=report.logprobs[row],
            finish=report.finish[row],
        )

    def describe(self, *, max_depth: int) -> Closing:
        """What is known of it now; ``max_depth`` is the longest draft."""
        now = time.perf_counter()
        draft, target, verify, rest = self.phases
        started = self.row >= 0
        return Closing(
            summary=Summary.empty(max_depth) if self.told is None else self.told.summary(self.row),
            no_draft=Counter(self.no_draft),
            num_measured=self.num_measured,
            times=Times(
                queue=(self.admitted if started else now) - self.submitted,
                prefill=self.prefill,
                first_token=self.first_token,
                total=now - self.submitted,
                draft=draft,
                target=target,
                verify=verify,
                rest=rest,
            ),
        )
