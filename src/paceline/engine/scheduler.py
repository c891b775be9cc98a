"""Continuous batching: schedules any number of requests over a decoder's fixed rows.

Requests take free rows in the order of submission. Prefixes that a request shares with a row or with another request
are copied in the caches. Prompts are prefilled in chunks between steps, so a long one does not stall the running rows.
A request's tokens do not depend on the rows that it runs with.
"""

import logging
import time
from collections import deque
from dataclasses import dataclass
from itertools import chain, islice
from typing import final

from paceline.core.errors import without_frames
from paceline.core.host import integers
from paceline.core.request import Request
from paceline.core.step import Finish, StepResult
from paceline.engine.outputs import RequestState, RequestStats, StepOutput
from paceline.engine.prefixes import Placement, Source, arrange
from paceline.engine.readers import PendingStep
from paceline.engine.runner import Runner
from paceline.models.prefill import CHUNK
from paceline.models.scoring import PassageScore, Reading

logger = logging.getLogger("paceline")

PREFILL_TOKENS = 2 * CHUNK  # prompt tokens of all rows together that are prefilled between two steps


@dataclass(frozen=True, slots=True, kw_only=True)
class _Admission:
    """Requests whose prompts are being prefilled."""

    states: list[RequestState]
    reading: Reading
    start: float


@final
class Scheduler:
    """Turns requests into step outputs. While rows run, ``prefill_tokens`` of prompts are read between two steps."""

    def __init__(self, runner: Runner, *, prefill_tokens: int = PREFILL_TOKENS) -> None:
        self.runner, self.decoder, self.prefill_tokens = runner, runner.decoder, prefill_tokens
        self._queued: deque[tuple[PendingStep, dict[int, RequestState]]] = deque()  # with its requests by row
        self._late: Exception | None = None  # of a step that failed while an earlier one was not yet read
        self._tickets = 0
        self._waiting: deque[RequestState] = deque()
        self._admission: _Admission | None = None
        self._running: dict[int, RequestState] = {}  # by row
        self._free = list(range(self.decoder.rows))  # the least recently used first
        self._done: dict[int, tuple[RequestStats, PassageScore | None]] = {}
        self._failed: list[StepOutput] = []  # of requests that could not be admitted

    @property
    def idle(self) -> bool:
        """Whether no request is waiting or running and every output has been returned."""
        return not (self._waiting or self._admission or self._running or self._failed)

    @property
    def num_running(self) -> int:
        """Requests that have rows."""
        return len(self._running) + (0 if self._admission is None else len(self._admission.states))

    @property
    def num_waiting(self) -> int:
        """Requests that have none yet."""
        return len(self._waiting)

    @property
    def num_tokens(self) -> int:
        """Of all running requests, prompts included."""
        return sum(len(state.sequence) for state in self._running.values())

    def submit(self, request: Request, *, sequence: list[int] | None = None) -> int:
        """Queue a request. Returns its ticket.

        ``sequence`` (None: a copy of the prompt) holds the prompt; every generated token is appended to it. Raises
        ValueError for what ``Decoder.check`` refuses; a caller that passes ``sequence`` has called it.
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
        """End a request, waiting or running, and free its row at once. Finished requests stay as they are."""
        if ticket in self._done:
            self._failed = [output for output in self._failed if output.ticket != ticket]  # not to be returned
            return
        state = self._find(ticket)
        if self._running.get(state.row) is state:
            self._leave(state)
        else:
            if state in self._waiting:
                self._waiting.remove(state)
            self._finish(state)  # during admission it keeps its row until its prompt is prefilled

    def stats(self, ticket: int) -> RequestStats:
        """Statistics of a request, up to now or up to its end."""
        if ticket in self._done:
            return self._done[ticket][0]
        return self._stats(self._find(ticket))

    def prompt_scores(self, ticket: int) -> PassageScore | None:
        """Log-probabilities of a request's prompt, if it asks for them, once the prompt is prefilled."""
        return self._done[ticket][1] if ticket in self._done else self._find(ticket).prompt_scores

    def forget(self, ticket: int) -> None:
        """Drop the statistics of a finished request."""
        self._done.pop(ticket, None)

    def advance(self) -> list[StepOutput]:
        """Admit what fits, queue steps, and return the outputs of the earliest step that is not yet read."""
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
        """Queue as many steps as the reader allows and running requests may still need."""
        while self._queued and not self._rows(self._queued[0][1]):
            self.runner.take(self._queued.popleft()[0], ())  # all of its requests have left
        try:
            while len(self._queued) <= self.runner.num_ahead and any(map(self._needs_more, self._running.values())):
                self._queued.append((self.runner.launch(), dict(self._running)))
        except Exception as error:
            if not self._queued:
                raise
            self._drop_torn()
            self._late = error  # raised after the outputs of earlier steps are returned

    def _runs(self, state: RequestState) -> bool:
        return self._running.get(state.row) is state

    def _rows(self, states: dict[int, RequestState]) -> list[int]:
        """The rows of a step whose requests are still running."""
        return [row for row, state in states.items() if self._runs(state)]

    def _needs_more(self, state: RequestState) -> bool:
        """Whether a request may need tokens beyond the queued steps, each of which gives at least one."""
        coming = sum(states.get(state.row) is state for _, states in self._queued)
        return state.num_tokens + coming < state.request.max_tokens

    def _drop_torn(self) -> None:
        """End the requests whose rows an interrupted step had already extended: those tokens are lost."""
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
        """The step's outputs for the requests that are still running."""
        now = time.perf_counter()
        outputs: list[StepOutput] = []
        for row in self._rows(states):
            state = states[row]
            if row in result.failures:  # tokens chosen without the row's constraints are dropped
                outputs.append(state.fail(result.failures[row]))
                self._leave(state)
                self.runner.discard(row)
                continue
            outputs.append(state.take(step, result, now=now))
            if result.finish[row] is not Finish.RUNNING:
                self._leave(state)
        return outputs

    def _admit(self) -> None:
        """Prefill prompts of waiting requests: a few chunks while rows run, else all that fit."""
        left = self.prefill_tokens
        while self._admission is not None or (self._waiting and self._free):
            if self._admission is None:
                self._begin(left)
                continue
            left -= self._read(self._admission)
            if left <= 0 and self._running:
                return

    def _begin(self, budget: int) -> None:
        """Begin the admission of the first wave of waiting requests, up to about ``budget`` tokens to prefill."""
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
            [state.request for state in states],
            rows,
            [placement.prefix for placement in placements],
            waiting=min(len(self._waiting), len(self._free)) - len(states),
        )
        # Wherever an interruption comes, every request is somewhere.
        self._admission = admission = _Admission(states=states, reading=reading, start=start)
        for state, row in zip(states, rows, strict=True):
            self._waiting.remove(state)
            self._free.remove(row)
            state.row, state.admitted = row, start
        return admission

    def _read(self, admission: _Admission) -> int:
        """Prefill the next chunk; after the last one the requests run. Returns the approximate number of tokens."""
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
        """Start the requests, whose prompts are prefilled."""
        seconds = time.perf_counter() - admission.start
        for index, state in enumerate(admission.states):
            state.prefill = seconds
            state.prompt_scores = admission.reading.prompt_scores(index)
            self.runner.sequences[state.row] = state.sequence
        self._running |= {state.row: state for state in admission.states}
        self._admission = None
        for state in admission.states:
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
        """Admit requests one by one after their common admission failed, so that only the failing ones end."""
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
                self._failed.append(StepOutput(ticket=state.ticket, error=without_frames(error)))

    def _leave(self, state: RequestState) -> None:
        """Free the row of a request. Releasing it also stops work that only this request needed, as logprobs."""
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
