"""Any number of requests over a decoder's fixed rows. Knows nothing of text, files or terminals.

Requests wait in order and take rows as they come free; what a request shares with a row or with another request is
copied in the caches instead of read again. Which rows run together never changes a request's tokens.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import final

from paceline.core.batch import Finish, Report, Request
from paceline.core.host import integers
from paceline.core.logprobs import Chosen
from paceline.core.stats import Summary
from paceline.core.tree import NoDraft
from paceline.decode import Decoder
from paceline.engine.clock import Phases, StepClock
from paceline.engine.prefixes import Placement, arrange
from paceline.engine.watch import Watch

logger = logging.getLogger("paceline")


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
    """What one request got in a step; ``error`` instead if it could not be admitted."""

    ticket: int
    tokens: list[int] = field(default_factory=list[int])
    num_accepted: int = 0  # of the tokens, the drafted ones, which come first
    num_drafted: int = 0
    bonus: bool = False  # the own token followed a whole draft
    origins: list[int] = field(default_factory=list[int])
    logprobs: list[Chosen] = field(default_factory=list[Chosen])
    finish: Finish = Finish.RUNNING
    error: Exception | None = None


@dataclass(slots=True, kw_only=True)
class _Job:
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


@final
class Scheduler:
    """Requests in, gains out, step by step.

    ``clock`` must be the decoder's; ``watch`` its plan, where it has one; ``step`` does its steps (None: itself).
    """

    def __init__(
        self, *, decoder: Decoder, clock: StepClock, watch: Watch | None, step: Callable[[], None] | None = None
    ) -> None:
        self.decoder, self.clock, self.watch = decoder, clock, watch
        self._step = decoder.step if step is None else step
        self._tickets = 0
        self._waiting: deque[_Job] = deque()
        self._running: dict[int, _Job] = {}  # by row
        self._free = list(range(decoder.batch.rows))  # the longest unused first
        self._held: dict[int, list[int]] = {row: [] for row in self._free}  # texts of the rows, newest token included
        self._closed: dict[int, Closing] = {}
        self._failed: list[Gain] = []  # of requests that could not be admitted, until they are told

    @property
    def idle(self) -> bool:
        """Whether nothing waits, nothing runs, and nothing is left to be told."""
        return not self._waiting and not self._running and not self._failed

    def submit(self, request: Request) -> int:
        """Queue a request; its ticket. Raises ValueError, before any work, if the decoder could never serve it."""
        self.decoder.check(request)
        self._tickets += 1
        self._waiting.append(_Job(ticket=self._tickets, request=request, submitted=time.perf_counter()))
        return self._tickets

    def cancel(self, ticket: int) -> None:
        """Stop a request wherever it is; its row is free at once. One that has ended is left alone."""
        if ticket in self._closed:
            self._failed = [gain for gain in self._failed if gain.ticket != ticket]  # nobody waits to be told
            return
        job = self._find(ticket)
        if job.row >= 0:
            self._leave(job)
        else:
            self._waiting.remove(job)
            self._close(job)

    def describe(self, ticket: int) -> Closing:
        """What is known of a request so far, or was known when it left."""
        return self._closed[ticket] if ticket in self._closed else self._describe(self._find(ticket))

    def forget(self, ticket: int) -> None:
        """Drop what is kept of a request that has left."""
        self._closed.pop(ticket, None)

    def _find(self, ticket: int) -> _Job:
        return next(job for job in chain(self._running.values(), self._waiting) if job.ticket == ticket)

    def advance(self) -> list[Gain]:
        """Admit what fits, take one step, and say what every running request got."""
        self._admit_waiting()
        gains: list[Gain] = []
        if self._running:
            self.clock.start()
            try:
                self._step()
                report = self.decoder.read()
            except BaseException:
                self._drop_torn()
                raise
            phases = self.clock.take()
            if self.watch is not None:
                self.watch.took(sum(phases), rows=len(self._running), tokens=sum(report.num))
            now = time.perf_counter()
            gains = [self._gain(job, report, phases, now) for job in list(self._running.values())]
        failed, self._failed = self._failed, []
        return failed + gains

    def _drop_torn(self) -> None:
        """End the rows that a step had moved before it was cut off: nobody has seen their newest tokens."""
        lengths = integers(self.decoder.batch.length)
        for row, job in list(self._running.items()):
            if lengths[row] != len(self._held[row]):
                self._leave(job)
                error = RuntimeError("a step was interrupted after it had chosen tokens; submit the prompt again")
                self._failed.append(Gain(ticket=job.ticket, error=error))

    def _gain(self, job: _Job, report: Report, phases: Phases, now: float) -> Gain:
        row = job.row
        self._held[row].extend(report.tokens[row])
        if job.first_token is None:
            job.first_token = now - job.submitted
        for phase, seconds in enumerate(phases):
            job.phases[phase] += seconds
        reason = report.no_draft[row]
        if reason is not NoDraft.DRAFTED:
            job.no_draft[reason] += 1
            job.num_measured += reason is NoDraft.OFF and self.watch is not None and self.watch.is_plain
        if report.finish[row] is not Finish.RUNNING:
            self._leave(job)
        return Gain(
            ticket=job.ticket,
            tokens=report.tokens[row],
            num_accepted=report.accepted[row],
            num_drafted=report.drafted[row],
            bonus=report.bonus[row],
            origins=report.origin[row],
            logprobs=report.logprobs[row],
            finish=report.finish[row],
        )

    def _admit_waiting(self) -> None:
        """Fill the free rows, wave by wave; a request that cannot be admitted fails alone, the others are served."""
        if not self._waiting or not self._free:
            return
        jobs = [self._waiting.popleft() for _ in range(min(len(self._waiting), len(self._free)))]
        # The newest token of a text is in no cache yet.
        held = {row: text[:-1] for row, text in self._held.items() if text}
        try:
            for wave in arrange([list(job.request.tokens) for job in jobs], self._free, held):
                start = time.perf_counter()
                try:
                    self._admit(jobs, wave)
                except Exception:
                    logger.debug("admission of %d requests failed; trying them one by one", len(wave), exc_info=True)
                    self._admit_singly(jobs, wave)
                seconds = time.perf_counter() - start
                for placement in wave:
                    job = jobs[placement.index]
                    if job.row >= 0:
                        job.admitted, job.prefill = start, seconds
        finally:  # an interruption leaves those that have no row yet in the queue
            left = [job for job in jobs if job.row < 0 and job.ticket not in self._closed]
            self._waiting.extendleft(reversed(left))

    def _admit(self, jobs: list[_Job], wave: list[Placement]) -> None:
        """Put a wave into its rows; whatever goes wrong, none of the rows runs and none serves as a prefix."""
        rows = [placement.row for placement in wave]
        # Nothing is held in a row whose admission has failed since the wave was arranged.
        prefixes = [p.prefix if p.prefix is not None and self._held[p.prefix.row] else None for p in wave]
        try:
            self.decoder.admit([jobs[p.index].request for p in wave], rows, prefixes)
        except BaseException:
            self.decoder.release(rows)
            self._held.update({row: [] for row in rows})
            raise
        for placement in wave:
            job = jobs[placement.index]
            job.row = placement.row
            self._running[placement.row] = job
            self._free.remove(placement.row)
            self._held[placement.row] = list(job.request.tokens)

    def _admit_singly(self, jobs: list[_Job], wave: list[Placement]) -> None:
        for placement in wave:
            job = jobs[placement.index]
            try:
                self._admit(jobs, [Placement(index=placement.index, row=placement.row, prefix=None)])
            except Exception as error:
                self._close(job)
                self._failed.append(Gain(ticket=job.ticket, error=error))

    def _leave(self, job: _Job) -> None:
        """Free a row; released, so that no step goes on looking up what only its request asked for."""
        self._close(job)
        self.decoder.release([job.row])
        del self._running[job.row]
        self._free.append(job.row)

    def _close(self, job: _Job) -> None:
        self._closed[job.ticket] = self._describe(job)

    def _describe(self, job: _Job) -> Closing:
        now = time.perf_counter()
        draft, target, verify, rest = job.phases
        started = job.row >= 0
        return Closing(
            summary=self.decoder.stats.summary([job.row]) if started else Summary.empty(self.decoder.batch.max_depth),
            no_draft=Counter(job.no_draft),
            num_measured=job.num_measured,
            times=Times(
                queue=(job.admitted if started else now) - job.submitted,
                prefill=job.prefill,
                first_token=job.first_token,
                total=now - job.submitted,
                draft=draft,
                target=target,
                verify=verify,
                rest=rest,
            ),
        )
