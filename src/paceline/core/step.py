"""One step as the host sees it: its plan, and its result, which goes to plans, host drafters and the scheduler."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import final

from paceline.core.early_stop import StopRule
from paceline.core.host_draft import HostDraft
from paceline.core.logprobs import StepLogprobs, TokenLogprobs
from paceline.core.step_drafts import DraftTree, StepDrafts
from paceline.core.tree import NoDraft

HEADER = 7  # columns of a row's results before its tokens
NOT_FINITE = (
    "the target's logits hold NaN or infinity: its weights do, or its arithmetic overflows (float16 ends at 65,504); "
    "check the weights, or load it in bfloat16 or float32"
)
NO_TOKEN = "other options forbid every token that the grammar allows: change one of them"


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The shape of one step: drafts are at most ``num_draft_tokens`` tokens deep, which is static; 0 asks no drafter.

    ``depths`` limits each row to as many tokens or fewer (None: all may use all). ``off`` says why rows that are
    limited to 0 have no draft, ``explored`` are rows whose depth was chosen to learn something, and ``turn`` is a note
    of the plan that comes back with the result. ``stop`` ends chains early (None: never). ``copies`` are drafts of the
    host by row, where the plan chose them (None: the drafter chooses). ``searches`` lets the drafter try, before it
    drafts, whether it could draft better (Drafter.num_search_nodes). Plans that differ in these alone do the same
    operations, but for whether there is a ``stop``.

    With ``num_copied`` rows of two kinds stand in one tree: those of ``copies``, chains of at most so many tokens,
    whose ``depths`` are 0, and those that ``drafter``, another one, drafts for.
    """

    num_draft_tokens: int
    depths: tuple[int, ...] | None = field(default=None, compare=False)
    off: NoDraft = field(default=NoDraft.OFF, compare=False)
    explored: tuple[int, ...] = field(default=(), compare=False)
    turn: int | None = field(default=None, compare=False)
    stop: StopRule | None = field(default=None, compare=False)
    drafter: int = 0  # which of several candidates drafts
    num_copied: int = 0
    copies: Mapping[int, HostDraft] | None = field(default=None, compare=False)
    searches: bool = field(default=True, compare=False)

    def depth_of(self, row: int) -> int:
        """The most tokens that ``row`` may draft."""
        return self.num_draft_tokens if self.depths is None else self.depths[row]

    @property
    def max_depth(self) -> int:
        """Of the step's tree."""
        return max(self.num_draft_tokens, self.num_copied)

    def most_gained(self, row: int) -> int:
        """The most tokens that ``row`` may gain."""
        copied = self.copies.get(row) if self.num_copied and self.copies is not None else None
        return 1 + (self.depth_of(row) if copied is None else len(copied.tokens))


class NoTokenLeft(ValueError):
    """A row's constraints left it no token."""


class NotFiniteError(ValueError):
    """The target's logits hold NaN or infinity, or exclude every token: nothing can be sampled from them."""


class Failure(IntEnum):
    """Why a row cannot go on."""

    NONE = 0
    NO_TOKEN = 1  # its constraints leave none
    NOT_FINITE = 2  # the target's logits


class Finish(IntEnum):
    """Why a row ended."""

    RUNNING = 0
    STOP = 1
    LENGTH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSeconds:
    """Seconds of each phase of a step, by the clock of the device."""

    draft: float = 0.0
    score: float = 0.0
    decide: float = 0.0
    rest: float = 0.0  # on the host: reading results, until the step was done
    search: float = 0.0  # of ``draft``: before drafting began, in a step whose plan ``searches``

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        return self.draft + self.score + self.decide + self.rest

    def __add__(self, other: "PhaseSeconds") -> "PhaseSeconds":
        return PhaseSeconds(
            draft=self.draft + other.draft,
            score=self.score + other.score,
            decide=self.decide + other.decide,
            rest=self.rest + other.rest,
            search=self.search + other.search,
        )

    @property
    def without_search(self) -> "PhaseSeconds":
        """The same step, had its drafter not searched."""
        return PhaseSeconds(draft=self.draft - self.search, score=self.score, decide=self.decide, rest=self.rest)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of one step of R rows; every list has an entry per row."""

    plan: StepPlan
    tokens: list[list[int]]  # that the row gained
    num_accepted: list[int]  # of these, drafted ones, which come first
    num_drafted: list[int]
    finish: list[Finish]
    bonus: list[bool]  # the last token followed a draft that was accepted whole
    confidence: list[int]  # levels of the draft's distributions (core/early_stop.noted_levels), 0 where none are noted
    no_draft: list[NoDraft]  # why the row had no draft; DRAFTED where it had one
    origins: list[list[int]]  # of each token, the drafter's number for what proposed it (Drafter.origins)
    logprobs: list[list[TokenLogprobs]]  # of rows that ask for them
    drafts: Mapping[int, DraftTree] = field(default_factory=dict[int, DraftTree])  # by row, of those that ask
    failures: Mapping[int, Exception] = field(default_factory=dict[int, Exception])  # rows whose constraints failed
    seconds: PhaseSeconds = PhaseSeconds()

    @property
    def num_tokens(self) -> int:
        """Tokens of all rows."""
        return sum(map(len, self.tokens))

    @property
    def num_running(self) -> int:
        """Rows that took part."""
        return sum(map(bool, self.tokens))


def read_results(
    results: Sequence[int],
    *,
    rows: int,
    plan: StepPlan,
    num_logprobs: Sequence[int | None],
    logprobs: StepLogprobs | None,
    failures: Mapping[int, Exception],
    drafts: StepDrafts | None = None,
    timer: Callable[[], PhaseSeconds] = PhaseSeconds,
) -> StepResult:
    """The result that ``results`` (Batch.results) hold; ``num_logprobs`` says how many each row asks for.

    ``failures`` are of constraints that raised; rows that were left without a token are added. ``timer`` gives the
    step's seconds, until it is asked.
    """
    width = len(results) // rows - 1
    table = [results[start : start + width] for start in range(0, rows * width, width)]
    ends = (width + HEADER) // 2
    num = [row[0] for row in table]
    reasons = [NoDraft(row[5]) for row in table]
    if plan.off is not NoDraft.OFF:
        reasons = [plan.off if reason is NoDraft.OFF else reason for reason in reasons]
    failed = {
        row: NoTokenLeft(NO_TOKEN) if failure == Failure.NO_TOKEN else NotFiniteError(NOT_FINITE)
        for row, failure in enumerate(results[rows * width :])
        if failure
    }
    return StepResult(
        plan=plan,
        tokens=[list(row[HEADER : HEADER + row[0]]) for row in table],
        num_accepted=[row[1] for row in table],
        num_drafted=[max(0, row[2]) for row in table],
        finish=[Finish(row[3]) for row in table],
        bonus=[bool(row[4]) for row in table],
        no_draft=reasons,
        confidence=[row[6] for row in table],
        origins=[list(row[ends : ends + row[0]]) for row in table],
        logprobs=[[] for _ in table] if logprobs is None else logprobs.read(num_logprobs, num),
        drafts={} if drafts is None else drafts.read([row[1] for row in table]),
        failures={**failed, **failures},
        seconds=timer(),
    )
