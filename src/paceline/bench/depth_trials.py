"""Times and acceptance of all draft lengths side by side: a plan that takes them in turn while prompts are decoded.

Whatever disturbs the machine hits all lengths alike, because they alternate every few steps, in a random order.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import final

from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.core.step import Finish, PhaseSeconds, StepPlan, StepResult
from paceline.core.tree import NoDraft
from paceline.engine.acceptance import Counts, Pool
from paceline.engine.costs import StepWork

HOLD = 3  # steps in a row of one length; the first is not timed, as the drafter may have tokens to catch up on
CATCHING_UP = 1  # note in the plan of that step


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """A step that was timed; ``round`` is that of all lengths."""

    work: StepWork
    seconds: PhaseSeconds
    round: int


@final
@dataclass(slots=True, kw_only=True)
class _Running:
    """A request in a row, as far as its results are known."""

    prompt: int
    left: int  # tokens until its end


@final
@dataclass(slots=True, kw_only=True)
class Trials:
    """What was seen: timed steps with all rows, all steps by length, and acceptance by prompt."""

    max_draft_tokens: int
    greedy: bool = True  # the requests, else they sample
    steps: list[TimedStep] = field(default_factory=list[TimedStep])
    num_steps: Counter[int] = field(default_factory=Counter[int])
    counts: dict[int, Counts] = field(default_factory=dict[int, Counts])

    def pool(self, prompts: Sequence[int] | None = None) -> Pool:
        """The acceptance over all ``prompts`` (None: each once), later steps weighing as much as earlier ones."""
        chosen = [self.counts[prompt] for prompt in (self.counts if prompts is None else prompts)]
        pool = Pool(self.max_draft_tokens)
        pool.counts.add_all(chosen)
        pool.refresh()
        return pool


@final
class DepthTrials(Plan):
    """Takes the lengths from 0 to ``max_draft_tokens`` in turn, in a random order of its own in every round.

    ``prompts`` are numbers of prompts by their tokens; ``num_unverified`` is the drafter's. Nothing is kept until
    ``begin``.
    """

    def __init__(
        self,
        *,
        rows: int,
        max_draft_tokens: int,
        prompts: Mapping[tuple[int, ...], int],
        num_unverified: int = 0,
        seed: int = 0,
    ) -> None:
        self._num_unverified = num_unverified
        self._size, self._max, self._prompts = rows, max_draft_tokens, prompts
        self._random = Random(seed)
        self._queue: deque[StepPlan] = deque()
        self._rows: dict[int, _Running] = {}
        self._keeping = False
        self._num_planned = 0  # blocks of HOLD steps
        self.trials = Trials(max_draft_tokens=max_draft_tokens)

    @property
    def max_draft_tokens(self) -> int:
        return self._max

    @property
    def num_rounds(self) -> int:
        """Rounds of all lengths that were timed, by the length with the fewest."""
        timed = Counter(step.work.depth for step in self.trials.steps)
        return min(timed[depth] for depth in range(self._max + 1)) // (HOLD - 1)

    def begin(self) -> None:
        """Keep what is seen from now on; earlier steps have warmed everything up."""
        self._keeping = True

    def admit(self, rows: Sequence[int], requests: Sequence[Request], *, waiting: int = 0) -> None:
        """Note whose prompt is in which row."""
        for row, request in zip(rows, requests, strict=True):
            self.trials.greedy = not request.sampling.temperature
            self._rows[row] = _Running(prompt=self._prompts[tuple(request.tokens)], left=request.max_tokens)

    def release(self, rows: Iterable[int]) -> None:
        """Forget rows whose requests have ended."""
        for row in rows:
            self._rows.pop(row, None)

    def __call__(self) -> StepPlan:
        """The next length."""
        if not self._queue:
            for depth in self._random.sample(range(self._max + 1), self._max + 1):
                self._queue.append(StepPlan(depth, turn=CATCHING_UP))
                self._queue.extend([StepPlan(depth, turn=0)] * (HOLD - 1))
            self._num_planned += 1
        return self._queue.popleft()

    def observe(self, result: StepResult) -> None:
        """Keep the step's seconds if all rows took part with whole drafts, and what each accepted."""
        depth = result.plan.num_draft_tokens
        running = [row for row, tokens in enumerate(result.tokens) if tokens and row in self._rows]
        whole = all(self._rows[row].left > depth for row in running)
        for row in running:
            self._rows[row].left -= len(result.tokens[row])
        if not self._keeping or not running:
            return
        self.trials.num_steps[depth] += 1
        if whole and len(running) == self._size and result.plan.turn != CATCHING_UP:
            each = 1 + (self._num_unverified if depth else 0)
            nodes = len(running) * each + sum(result.num_drafted[row] for row in running)
            work = StepWork(len(running), nodes, depth, len(running) * depth)
            self.trials.steps.append(TimedStep(work=work, seconds=result.seconds, round=self._num_planned))
        for row in running if depth else ():
            self._count(result, row, depth)

    def _count(self, result: StepResult, row: int, depth: int) -> None:
        drafted, accepted = result.num_drafted[row], result.num_accepted[row]
        if not drafted and result.no_draft[row] not in (NoDraft.NO_MATCH, NoDraft.DECLINED):
            return
        submitted = min(depth, drafted)
        if result.finish[row] is not Finish.RUNNING:
            submitted = min(submitted, accepted)  # cut by the end, not by a rejection
        if submitted or not drafted:
            counts = self.trials.counts.setdefault(self._rows[row].prompt, Counts(self._max))
            counts.add(num_accepted=accepted, depth=submitted, keep=1.0)
