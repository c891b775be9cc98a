"""Outputs and statistics of requests: each request's part of a step's result, and its totals."""

import time
from collections import Counter
from dataclasses import dataclass, field

from paceline.core.logprobs import TokenLogprobs
from paceline.core.request import Request
from paceline.core.stats import StageSummary, Summary
from paceline.core.step import Finish, NotFiniteError, PhaseSeconds, StepPlan, StepResult
from paceline.core.step_drafts import DraftTree
from paceline.core.tree import NoDraft
from paceline.engine.costs import DepthCost
from paceline.engine.readers import PendingStep
from paceline.engine.watch import Speed
from paceline.models.scoring import PassageScore

MOST_CHANGES = 64
REASONS: dict[NoDraft, str] = {
    NoDraft.OFF: "turned off",
    NoDraft.CAPPED: "the request's own limit is 0",
    NoDraft.LIMIT: "one token left to max_tokens",
    NoDraft.NO_MATCH: "no n-gram match",
    NoDraft.CONTEXT: "draft context full",
    NoDraft.DECLINED: "the drafter declined",
    NoDraft.FAILED: "the drafter failed",
    NoDraft.MEASURED: "plain step taken to measure",
    NoDraft.SLOWER: "drafting would be slower",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """A request's times in seconds. The time of a step counts in full for every request that took part in it."""

    queue: float  # from submission to admission
    prefill: float  # from admission until the prompt was read
    first_token: float | None  # from submission to the end of the step that gave the first token
    total: float  # from submission to the end
    draft: float
    score: float  # the target's forward
    decide: float  # verification, appending, committing
    rest: float  # reading results on the host

    @property
    def target(self) -> float:
        """The same as ``score``. Deprecated."""
        return self.score

    @property
    def verify(self) -> float:
        """The same as ``decide``. Deprecated."""
        return self.decide


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLengths:
    """How much the plan let a request draft, step by step."""

    steps: dict[int, int] = field(default_factory=dict[int, int])  # by the draft tokens that were allowed
    explored: int = 0  # of these, steps that were to find out something
    changes: tuple[tuple[int, int], ...] = ()  # tokens generated before, and the new length; the first MOST_CHANGES


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats:
    """Counts and times of a request.

    Counts are per request, after clipping at stop tokens, stop strings and limits. Times are wall-clock seconds; the
    steps of a batch count in full for each of its rows.
    """

    summary: Summary
    times: Times
    no_draft: dict[str, int] = field(default_factory=dict[str, int])  # steps without a draft, by reason
    draft_lengths: DraftLengths = field(default_factory=DraftLengths)
    costs: tuple[DepthCost, ...] = ()  # of the engine's steps by draft length, where a controller chose it
    speed: Speed | None = None  # of the whole batch, drafted and plain; None where it was not measured
    lossless: bool = True  # whether the verifier keeps the target's distribution
    stages: tuple[StageSummary, ...] = ()  # of drafters that draft for a draft model, and of the parts of a cascade

    @property
    def steps(self) -> int:
        """Target forwards that the request took part in."""
        return self.summary.steps

    @property
    def drafted(self) -> list[int]:
        """Steps that proposed a token at depth i + 1."""
        return self.summary.drafted

    @property
    def accepted(self) -> list[int]:
        """Steps that accepted it."""
        return self.summary.accepted

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per step: accepted ones and the correction or bonus."""
        return self.summary.mean_acceptance_length

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens."""
        return self.summary.acceptance_rate

    @property
    def per_position_acceptance(self) -> list[float]:
        """Accepted over drafted tokens, by depth."""
        return self.summary.per_position_acceptance

    @property
    def warning(self) -> str | None:
        """The warning that drafting was slower than plain decoding; None if it was not."""
        return None if self.speed is None else self.speed.warning


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """The tokens of one request in a step, or ``error`` if its admission or its constraints failed."""

    ticket: int
    token_ids: list[int] = field(default_factory=list[int])
    num_accepted: int = 0  # accepted draft tokens; they come first in token_ids
    num_drafted: int = 0
    bonus: bool = False  # the whole draft was accepted, and the last token is the bonus
    origins: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    draft: DraftTree | None = None  # if the request asks for it
    no_draft: str | None = None  # why there was none
    seconds: PhaseSeconds = field(default_factory=PhaseSeconds, compare=False)  # of the whole step
    num_rows: int = field(default=1, compare=False)  # that took part in it
    finish: Finish = Finish.RUNNING
    error: Exception | None = None


@dataclass(slots=True, kw_only=True)
class RequestState:
    """A request that is waiting, running or finished."""

    ticket: int
    request: Request
    submitted: float
    sequence: list[int]  # the prompt and the tokens of all results read so far
    row: int = -1
    admitted: float = 0.0
    prefill: float = 0.0
    first_token: float | None = None
    num_tokens: int = 0  # generated, in results read so far
    phases: PhaseSeconds = field(default_factory=PhaseSeconds)
    no_draft: Counter[NoDraft] = field(default_factory=Counter[NoDraft])
    prompt_scores: PassageScore | None = None
    last_step: PendingStep | None = None  # the newest step that it took part in
    lengths: Counter[int] = field(default_factory=Counter[int])
    explored: int = 0
    changes: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def take(self, step: PendingStep, result: StepResult, *, now: float) -> StepOutput:
        """The request's part of a step whose ``result`` was read at ``now``."""
        row = self.row
        self.last_step = step
        self._note_length(result.plan)
        self.num_tokens += len(result.tokens[row])
        if self.first_token is None:
            self.first_token = now - self.submitted
        self.phases = self.phases + result.seconds
        if result.no_draft[row] is not NoDraft.DRAFTED:
            self.no_draft[result.no_draft[row]] += 1
        return StepOutput(
            ticket=self.ticket,
            token_ids=result.tokens[row],
            num_accepted=result.num_accepted[row],
            num_drafted=result.num_drafted[row],
            bonus=result.bonus[row],
            origins=result.origins[row],
            logprobs=result.logprobs[row],
            draft=result.drafts.get(row),
            no_draft=REASONS.get(result.no_draft[row]),
            seconds=result.seconds,
            num_rows=result.num_running,
            finish=result.finish[row],
        )

    def fail(self, error: Exception) -> StepOutput:
        """The output of a step that failed for this request."""
        if isinstance(error, NotFiniteError):
            error = NotFiniteError(f"step {sum(self.lengths.values()) + 1}, after {self.num_tokens} tokens: {error}")
        return StepOutput(ticket=self.ticket, error=error)

    def _note_length(self, plan: StepPlan) -> None:
        """Count what the plan allowed in a step; called before the step's tokens are counted."""
        depth, last = plan.depth_of(self.row), self.changes[-1][1] if self.changes else None
        self.lengths[depth] += 1
        if self.row in plan.explored:
            self.explored += 1
        elif depth != last and len(self.changes) < MOST_CHANGES:
            self.changes.append((self.num_tokens, depth))

    def stats(self, *, max_depth: int) -> RequestStats:
        """Statistics up to now; ``max_depth`` is the longest draft."""
        now = time.perf_counter()
        started = self.row >= 0
        return RequestStats(
            summary=Summary.empty(max_depth) if self.last_step is None else self.last_step.summary(self.row),
            times=Times(
                queue=(self.admitted if started else now) - self.submitted,
                prefill=self.prefill,
                first_token=self.first_token,
                total=now - self.submitted,
                draft=self.phases.draft,
                score=self.phases.score,
                decide=self.phases.decide,
                rest=self.phases.rest,
            ),
            draft_lengths=DraftLengths(
                steps=dict(sorted(self.lengths.items())), explored=self.explored, changes=tuple(self.changes)
            ),
            no_draft={REASONS[reason]: count for reason, count in self.no_draft.items() if count},
            stages=() if self.last_step is None else self.last_step.stages(self.row),
        )
