"""Any number of requests over a decoder's fixed rows.

Requests wait in order and take rows as they come free. What a request shares with a row or with another request is
copied in the caches instead of being read again; prompts are read in chunks between steps, so that a long one does not
hold up the rows that run. Which rows run together never changes a request's tokens.
"""

import logging
import time
from collections import deque
from dataclasses import dataclass
from itertools import chain, islice
from typing import final

from paceline.core.host import integers
from paceline.core.request import Request
from paceline.core.step import Finish, StepResult
from paceline.decode import Reading
from paceline.engine.outputs import RequestState, RequestStats, StepOutput
from paceline.engine.prefixes import Placement, Source, arrange
from paceline.engine.readers import PendingStep
from paceline.engine.runner import Runner
from paceline.models.prefill import CHUNK
from paceline.models.scoring import PassageScore

logger = logging.getLogger("paceline")

PREFILL_TOKENS = 2 * CHUNK  # of prompts, all rows together, that are read between two steps


@dataclass(frozen=True, slots=True, kw_only=True)
class _Admission:
    """Requests whose prompts are being read."""

    states: list[RequestState]
    reading: Reading
    start: float


@final
class Scheduler:
    """Requests in, step outputs out. ``prefill_tokens`` of prompts are read between two steps of rows that run."""

    def __init__(self, runner: Runner, *, prefill_tokens: int = PREFILL_TOKENS) -> None:
        self.runner, self.decoder, self.prefill_tokens = runner, runner.decoder, prefill_tokens
        self._queued: deque[tuple[PendingStep, dict[int, RequestState]]] = deque()  # and who runs in it, by row
        self._late: Exception | None = None  # of a step that could not be queued behind one that is not yet read
        self._tickets = 0
        self._waiting: deque[RequestState] = deque()
        self._admission: _Admission | None = None
        self._running: dict[int, RequestState] = {}  # by row
        self._free = list(range(self.decoder.rows))  # the longest unused first
        self._done: dict[int, tuple[RequestStats, PassageScore | None]] = {}
        self._failed: list[StepOutput] = []  # of requests that could not be admitted

    @property
    def idle(self) -> bool:
        """Whether nothing waits, nothing runs, and every output has been given."""
        return not (self._waiting or self._admission or self._running or self._failed)

    def submit(self, request: Request, *, sequence: list[int] | None = None) -> int:
        """Queue a request and return its ticket.

        ``sequence`` (None: a copy of the prompt) is extended by every token that the request gets. Raises ValueError
        for what ``Decoder.check`` refuses; a caller that passes ``sequence`` has called it.
        """
        if sequence is None:
            self.decoder.check(request)
        self._tickets += 1
        now = time.perf_counter()
        self._waiting.append(
            RequestState(
                ticket=self._tickets, request=request, submitted=now, sequence=sequence or list(request.tokens)
            )
        )
        return self._tickets

    def cancel(self, ticket: int) -> None:
        """Stop a request wherever it is; its row is free at once. One that is done is left alone."""
        if ticket in self._done:
            self._failed = [output for output in self._failed if output.ticket != ticket]  # nobody waits for it
            return
        state = self._find(ticket)
        if self._running.get(state.row) is state:
            self._leave(state)
        else:
            if state in self._waiting:
                self._waiting.remove(state)
            self._finish(state)  # one that is being admitted leaves its row when its prompt is read

    def stats(self, ticket: int) -> RequestStats:
        """What is known of a request so far, or was known when it was done."""
        if ticket in self._done:
            return self._done[ticket][0]
        return self._stats(self._find(ticket))

    def prompt_scores(self, ticket: int) -> PassageScore | None:
        """Log-probabilities of a request's prompt, where it asks for them, once that is read."""
        return self._done[ticket][1] if ticket in self._done else self._find(ticket).prompt_scores

    def forget(self, ticket: int) -> None:
        """Drop what is kept of a request that is done."""
        self._done.pop(ticket, None)

    def advance(self) -> list[StepOutput]:
        """Admit what fits, take a step, and give what every running request got in the earliest one not yet read."""
        self._admit()
        outputs: list[StepOutput] = []
        late, self._late = self._late, None
        if self._running:
            if late is not None:
                raise late
            try:
                self._queue()
                step, states = self._queued[0]
                result = self.runner.take(step, self._rows(states))
            except BaseException:
                self._drop_torn()
                raise
            self._queued.popleft()
            outputs = self._give(step, states, result)
        failed, self._failed = self._failed, []
        return failed + outputs

    def _queue(self) -> None:
        """Let the device have as many steps to do as the reader allows and as may still matter."""
        while self._queued and not self._rows(self._queued[0][1]):
            self.runner.take(self._queued.popleft()[0], ())  # all who ran in it have left
        try:
            while len(self._queued) <= self.runner.num_ahead and any(map(self._needs_more, self._running.values())):
                self._queued.append((self.runner.launch(), dict(self._running)))
        except Exception as error:
            if not self._queued:
                raise
            self._drop_torn()
            self._late = error  # what was done before is given first

    def _runs(self, state: RequestState) -> bool:
        return self._running.get(state.row) is state

    def _rows(self, states: dict[int, RequestState]) -> list[int]:
        """Those of a step's rows whose requests still run."""
        return [row for row, state in states.items() if self._runs(state)]

    def _needs_more(self, state: RequestState) -> bool:
        """Whether a request may lack tokens after the queued steps, each of which gives one at least."""
        coming = sum(states.get(state.row) is state for _, states in self._queued)
        return state.num_tokens + coming < state.request.max_tokens

    def _drop_torn(self) -> None:
        """End the rows that a step had moved before it was cut off: nobody will see their newest tokens."""
        if not self.runner.num_ahead:
            self._queued.clear()
        lengths = integers(self.decoder.batch.length)
        for row, state in list(self._running.items()):
            coming = sum(len(step.result().tokens[row]) for step, states in self._queued if states.get(row) is state)
            if lengths[row] != len(self.runner.sequences[row]) + coming:
                self._leave(state)
                error = RuntimeError("a step was interrupted after it had chosen tokens; submit the prompt again")
                self._failed.append(StepOutput(ticket=state.ticket, error=error))

    def _give(self, step: PendingStep, states: dict[int, RequestState], result: StepResult) -> list[StepOutput]:
        """What a step did for those who still run; who has left meanwhile gets nothing."""
        now = time.perf_counter()
        outputs: list[StepOutput] = []
        for row in self._rows(states):
            state = states[row]
            if row in result.failures:  # what a step gave without the row's constraints is not given
                outputs.append(StepOutput(ticket=state.ticket, error=result.failures[row]))
                self._leave(state)
                continue
            outputs.append(state.take(step, result, now=now))
            if result.finish[row] is not Finish.RUNNING:
                self._leave(state)
        return outputs

    def _admit(self) -> None:
        """Read prompts of waiting requests: a few chunks where rows run, all that fits where none does."""
        left = self.prefill_tokens
        while self._admission is not None or (self._waiting and self._free):
            if self._admission is None:
                self._begin(left)
                continue
            left -= self._read(self._admission)
            if left <= 0 and self._running:
                return

    def _begin(self, budget: int) -> None:
        """Begin with the first waiting requests that share nothing with each other, about ``budget`` tokens of them."""
        states = list(islice(self._waiting, len(self._free)))
        waiting = [Source(state.sequence, state.request.context) for state in states]
        contexts = self.decoder.contexts
        held = {row: Source(tokens, contexts[row]) for row, tokens in self.runner.sequences.items()}
        wave = arrange(waiting, self._free, held)[0]
        chosen: list[Placement] = []
        for placement in sorted(wave, key=lambda placement: placement.index):
            unread = len(states[placement.index].request.tokens) - (placement.prefix.length if placement.prefix else 0)
            if chosen and unread > budget:
                break
            chosen.append(placement)
            budget -= unread
        try:
            self._start([states[placement.index] for placement in chosen], chosen)
        except Exception:
            logger.debug("admission of %d requests failed; trying them one by one", len(chosen), exc_info=True)
            self._admit_singly([states[placement.index] for placement in chosen])

    def _start(self, states: list[RequestState], placements: list[Placement]) -> _Admission:
        rows = [placement.row for placement in placements]
        start = time.perf_counter()
        reading = self.runner.begin(
            [state.request for state in states], rows, [placement.prefix for placement in placements]
        )
        for state, row in zip(states, rows, strict=True):
            self._waiting.remove(state)
            self._free.remove(row)
            state.row, state.admitted = row, start
        self._admission = _Admission(states=states, reading=reading, start=start)
        return self._admission

    def _read(self, admission: _Admission) -> int:
        """Read the next chunk, and with the last one let the requests run; the tokens that were read, about."""
        try:
            size = self.runner.read(admission.reading)
        except BaseException as error:
            self._abandon(admission)
            if not isinstance(error, Exception):
                raise
            logger.debug(
                "admission of %d requests failed; trying them one by one", len(admission.states), exc_info=True
            )
            self._admit_singly(admission.states)
            return 0
        if admission.reading.done:
            self._complete(admission)
        return size * len(admission.states)

    def _complete(self, admission: _Admission) -> None:
        """Let requests run whose prompts are read."""
        self._admission = None
        seconds = time.perf_counter() - admission.start
        for index, state in enumerate(admission.states):
            state.prefill = seconds
            state.prompt_scores = admission.reading.prompt_scores(index)
            self._running[state.row] = state
            self.runner.sequences[state.row] = state.sequence
            if state.ticket in self._done:  # cancelled meanwhile
                self._leave(state)

    def _abandon(self, admission: _Admission) -> None:
        """Put the requests of a failed admission back to the front of the queue."""
        self._admission = None
        for state in reversed(admission.states):
            self._free.append(state.row)
            state.row = -1
            if state.ticket not in self._done:
                self._waiting.appendleft(state)

    def _admit_singly(self, states: list[RequestState]) -> None:
        """Admit requests whose common admission failed one after the other; each that fails ends alone."""
        for state in states:
            if state.ticket in self._done:
                continue
            try:
                admission = self._start([state], [Placement(index=0, row=self._free[0], prefix=None)])
                try:
                    while self._admission is not None:
                        self.runner.read(admission.reading)
                        if admission.reading.done:
                            self._complete(admission)
                except BaseException:
                    self._abandon(admission)
                    raise
            except Exception as error:
                self._waiting.remove(state)
                self._finish(state)
                self._failed.append(StepOutput(ticket=state.ticket, error=error))

    def _leave(self, state: RequestState) -> None:
        """Free a row; released, so that no step goes on looking up what only its request asked for."""
        if state.ticket not in self._done:
            self._finish(state)
        self.runner.release([state.row])
        del self._running[state.row]
        self._free.append(state.row)

    def _finish(self, state: RequestState) -> None:
        self._done[state.ticket] = (self._stats(state), state.prompt_scores)

    def _stats(self, state: RequestState) -> RequestStats:
        return state.stats(max_depth=self.decoder.batch.max_depth)

    def _find(self, ticket: int) -> RequestState:
        admitting = [] if self._admission is None else self._admission.states
        return next(
            state for state in chain(self._running.values(), admitting, self._waiting) if state.ticket == ticket
        )
