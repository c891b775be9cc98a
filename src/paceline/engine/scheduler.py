"""Any number of requests over a decoder's fixed rows. Knows nothing of text, files or terminals.

Requests wait in order and take rows as they come free; what a request shares with a row or with another request is
copied in the caches instead of read again. Which rows run together never changes a request's tokens.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import final

from paceline.core.batch import Finish
from paceline.core.host import integers
from paceline.core.request import Request
from paceline.decode import Decoder
from paceline.engine.clock import StepClock, StepTimes
from paceline.engine.jobs import Closing, Gain, Job
from paceline.engine.prefixes import Placement, arrange
from paceline.engine.reports import AtOnce, Awaited, Reports, Told
from paceline.engine.watch import Turn, Watch

logger = logging.getLogger("paceline")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flight:
    """A step whose operations are queued, and who runs in it."""

    jobs: dict[int, Job]  # by row
    times: StepTimes
    turn: Turn | None
    awaited: Awaited
    failures: dict[int, Exception]  # of rules in it, by row


@final
class Scheduler:
    """Requests in, gains out, step by step.

    ``clock`` must be the decoder's; ``watch`` its plan, where it has one; ``step`` does its steps (None: itself), and
    ``reports`` (None: AtOnce) says how they are read.
    """

    def __init__(
        self,
        *,
        decoder: Decoder,
        clock: StepClock,
        watch: Watch | None,
        step: Callable[[], None] | None = None,
        reports: Reports | None = None,
    ) -> None:
        self.decoder, self.clock, self.watch = decoder, clock, watch
        self._step = decoder.step if step is None else step
        self._reports = AtOnce(decoder) if reports is None else reports
        self._flights: deque[_Flight] = deque()  # steps that are queued and not yet told of
        self._late: Exception | None = None  # of a step that could not be queued behind one that is not yet told of
        self._tickets = 0
        self._waiting: deque[Job] = deque()
        self._running: dict[int, Job] = {}  # by row
        self._free = list(range(decoder.rows))  # the longest unused first
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
        self._waiting.append(Job(ticket=self._tickets, request=request, submitted=time.perf_counter()))
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

    def _find(self, ticket: int) -> Job:
        return next(job for job in chain(self._running.values(), self._waiting) if job.ticket == ticket)

    def advance(self) -> list[Gain]:
        """Admit what fits, take a step, and say what every running request got in the earliest one not yet told."""
        self._admit_waiting()
        gains: list[Gain] = []
        late, self._late = self._late, None
        if self._running:
            if late is not None:
                raise late
            try:
                self._queue()
                flight = self._flights[0]
                told = flight.awaited.take()
            except BaseException:
                self._drop_torn()
                raise
            gains = self._tell(self._flights.popleft(), told)
        failed, self._failed = self._failed, []
        return failed + gains

    def _queue(self) -> None:
        """Let the device have as many steps to do as the order of reports allows and as may still matter."""
        while self._flights and not self._in(self._flights[0]):
            self._flights.popleft()  # all who ran in it have left
        try:
            self._fill()
        except Exception as error:
            if not self._flights:
                raise
            self._drop_torn()
            self._late = error  # what was done before is told first

    def _fill(self) -> None:
        while len(self._flights) <= self._reports.num_ahead and any(map(self._needs_more, self._running.values())):
            times = self.clock.start()
            self._step()
            turn = None if self.watch is None else self.watch.turn
            self._flights.append(
                _Flight(
                    jobs=dict(self._running),
                    times=times,
                    turn=turn,
                    awaited=self._reports.post(),
                    failures=self.decoder.lane.take_failures(),
                )
            )

    def _in(self, flight: _Flight) -> list[Job]:
        """Those of a step's jobs that still run."""
        return [job for row, job in flight.jobs.items() if self._running.get(row) is job]

    def _needs_more(self, job: Job) -> bool:
        """Whether a request may lack tokens after the steps in flight, each of which gives one at least."""
        coming = sum(flight.jobs.get(job.row) is job for flight in self._flights)
        return job.num_told + coming < job.request.max_tokens

    def _drop_torn(self) -> None:
        """End the rows that a step had moved before it was cut off: nobody will see their newest tokens."""
        if not self._reports.num_ahead:
            self._flights.clear()
        lengths = integers(self.decoder.batch.length)
        for row, job in list(self._running.items()):
            coming = [flight.awaited.take().report.num[row] for flight in self._flights if flight.jobs.get(row) is job]
            if lengths[row] != len(self._held[row]) + sum(coming):
                self._leave(job)
                error = RuntimeError("a step was interrupted after it had chosen tokens; submit the prompt again")
                self._failed.append(Gain(ticket=job.ticket, error=error))

    def _tell(self, flight: _Flight, told: Told) -> list[Gain]:
        """What a step did for those who still run; who has left meanwhile is told nothing."""
        phases, report, now = flight.times.take(), told.report, time.perf_counter()
        nums = report.num[: self.decoder.rows]
        ran = sum(num > 0 for num in nums)
        if flight.turn is not None and self.watch is not None and ran:
            self.watch.took(flight.turn, sum(phases), rows=ran, tokens=sum(nums))
        gains: list[Gain] = []
        for job in self._in(flight):
            if job.row in flight.failures:  # what a step gave without its rules is not told
                gains.append(Gain(ticket=job.ticket, error=flight.failures[job.row]))
                self._leave(job)
                continue
            gains.append(job.tell(told, phases=phases, now=now, turn=flight.turn))
            self._held[job.row].extend(report.tokens[job.row])
            if report.finish[job.row] is not Finish.RUNNING:
                self._leave(job)
        return gains

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

    def _admit(self, jobs: list[Job], wave: list[Placement]) -> None:
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

    def _admit_singly(self, jobs: list[Job], wave: list[Placement]) -> None:
        for placement in wave:
            job = jobs[placement.index]
            try:
                self._admit(jobs, [Placement(index=placement.index, row=placement.row, prefix=None)])
            except Exception as error:
                self._close(job)
                self._failed.append(Gain(ticket=job.ticket, error=error))

    def _leave(self, job: Job) -> None:
        """Free a row; released, so that no step goes on looking up what only its request asked for."""
        self._close(job)
        self.decoder.release([job.row])
        del self._running[job.row]
        self._free.append(job.row)

    def _close(self, job: Job) -> None:
        self._closed[job.ticket] = self._describe(job)

    def _describe(self, job: Job) -> Closing:
        return job.describe(max_depth=self.decoder.batch.max_depth)
