"""Drives a decoder: times draft, score and decide, replays recorded steps, guards the drafter and reads results.

Keeps the one host copy of every row's sequence, and hands each step's result to the plan and to host drafters.
"""

import logging
from collections.abc import Hashable, Iterable, Sequence
from time import perf_counter
from typing import final

import torch

from paceline.core.admission import Prefixes
from paceline.core.host import integers
from paceline.core.ops import Ops, TensorOps
from paceline.core.plan import Fixed
from paceline.core.request import Request
from paceline.core.step import StepPlan, StepResult
from paceline.core.tree import NoDraft
from paceline.decode import Decoder, without_gradients
from paceline.drafters.none import NoDrafter
from paceline.engine.graphs import CudaGraphs, Graphs, Recorder
from paceline.engine.readers import AsyncReader, PendingStep, Reader, SyncReader
from paceline.engine.timing import StepTimer
from paceline.kernels.cpu.compile import KernelError
from paceline.kernels.cpu.ops import CpuOps
from paceline.models.backend import warn_eager
from paceline.models.native.decoder import DecoderLM
from paceline.models.scoring import Reading

logger = logging.getLogger("paceline")
HOW_TO_SEE = "where: at level debug of the logger 'paceline', --log-level debug on the command line"


@final
class Runner:
    """Takes the steps of ``decoder``.

    ``reader`` (None: SyncReader) says how results are read; ``graphs`` (None: steps are called) records steps. A
    drafter that raises costs its drafts, never the output: the message is logged and kept in ``drafter_error``, and
    decoding goes on without drafts.
    """

    def __init__(self, decoder: Decoder, *, reader: Reader | None = None, graphs: Graphs | None = None) -> None:
        self.decoder = decoder
        # Of each row, as far as its results are read, the root last: the host's one copy, shared with the scheduler.
        self.sequences: dict[int, list[int]] = {}
        decoder.batch.sequences = self.sequences
        self.drafter_error: str | None = None  # no exception: its traceback would keep caches and drafter
        self.recorder = None if graphs is None else Recorder(decoder=decoder, graphs=graphs)
        self.num_called = self.num_replayed = 0  # steps
        self._reader = reader or SyncReader(decoder)
        self._waiting = 0  # requests that will join those that were begun last
        self._prefills: list[tuple[int, StepTimer]] = []  # of a draft head, whose times are not known yet, and tokens

    @property
    def num_ahead(self) -> int:
        """Steps that may be queued beyond the one whose result is read; a host drafter waits for every result."""
        return 0 if self.decoder.drafter.on_host else self._reader.num_ahead

    def begin(
        self, requests: Sequence[Request], rows: Sequence[int], prefixes: Prefixes, *, waiting: int = 0
    ) -> Reading:
        """See Decoder.begin; whatever goes wrong, none of the rows runs and none serves as a prefix."""
        self._waiting = waiting
        for row in rows:
            self.sequences.pop(row, None)
        try:
            return self.decoder.begin(requests, rows, prefixes, waiting=waiting)
        except BaseException:
            self.release(rows)
            raise

    def read(self, reading: Reading) -> int:
        """Read the next chunk of prompts, and with the last one let their rows take part in steps."""
        try:
            size = 0 if reading.done else self.decoder.read(reading)
            if reading.done:
                rows, requests = reading.admission.row_numbers, reading.admission.requests
                self.decoder.plan.admit(rows, requests, waiting=self._waiting)
                self._prefill_drafter(reading)
                self.decoder.activate(reading)
        except BaseException:
            self.release(integers(reading.admission.rows))
            raise
        return size

    def release(self, rows: Sequence[int]) -> None:
        """Stop ``rows`` where they are. Their sequences stay, as prefixes for others."""
        try:
            self.decoder.release(rows)
        except Exception as error:
            self._drop_drafter(error)
            self.decoder.release(rows)

    def discard(self, row: int) -> None:
        """Let nothing of what ``row`` has read serve others: its keys and values are not finite."""
        self.sequences.pop(row, None)
        self.decoder.cache.clear([row])

    def launch(self) -> PendingStep:
        """Queue a step."""
        decoder = self.decoder
        with without_gradients():
            timer = self._reader.start()
            self._look_for_copies()
            started = perf_counter()
            plan = decoder.plan()
            timer.leave_out(perf_counter() - started)  # of the draft: the plan knows what it takes
            self._begin_step(plan)
            if plan.searches and decoder.drafter.num_search_nodes:
                timer.mark_search()
            kind: Hashable = None if self.recorder is None else self.recorder.kind(plan)
            recorded = None if self.recorder is None else self.recorder.find(kind)
            if recorded is not None:
                recorded.replay(decoder, timer)
                self.num_replayed += 1
            else:
                self.num_called += 1
                self._call(plan, timer, kind)
            decoder.guard.send()
            return self._reader.post(plan, timer, decoder.constraints.take_failures())

    def take(self, pending: PendingStep, rows: Iterable[int]) -> StepResult:
        """The result of a step: to be asked for once, in the order of the steps.

        ``rows`` still serve the requests that they served when the step was launched.
        """
        result = pending.result()
        for row in rows:
            if row not in result.failures:
                self.sequences[row].extend(result.tokens[row])
        self._note_prefills()
        self.decoder.plan.observe(result)
        error = self.decoder.guard.error()
        if error is not None and self.drafter_error is None:
            self._drop_drafter(error)
        return result

    def _call(self, plan: StepPlan, timer: StepTimer, kind: Hashable) -> None:
        """Do a step, operation by operation, and record one of its kind in time."""
        recorder = self.recorder
        if recorder is None or not recorder.wants(kind):
            self._run(plan, timer)
            return
        drafter, before = self.decoder.drafter, self.decoder.drafter.host_state
        with recorder.graphs.aside():
            self._run(plan, timer)
        if self.decoder.drafter is drafter:
            recorder.called(kind, plan, before)

    def _run(self, plan: StepPlan, timer: StepTimer) -> None:
        decoder = self.decoder
        try:
            tree = decoder.draft(plan)
        except Exception as error:
            self._drop_drafter(error)
            tree = decoder.draft(plan)
        timer.mark()
        scores = decoder.score(tree)
        timer.mark()
        outcome = decoder.decide(tree, scores)
        try:
            decoder.observe(tree, outcome, scores)
        except Exception as error:
            self._drop_drafter(error)
        timer.mark()

    def _prefill_drafter(self, reading: Reading) -> None:
        decoder, admission = self.decoder, reading.admission
        reads_states = decoder.drafter.taps and not decoder.plain_rows.issuperset(admission.row_numbers)
        timer = self._reader.start() if reads_states else None
        try:
            decoder.prefill_drafter(reading)
        except Exception as error:
            self._drop_drafter(error)
            return
        if timer is not None:
            timer.mark()
            self._prefills.append((admission.num_unread, timer))

    def _note_prefills(self) -> None:
        """Let the plan know what the drafter took to read prompts, as soon as the device has done it."""
        while self._prefills and (seconds := self._prefills[0][1].elapsed()) is not None:
            self.decoder.plan.observe_prefill(self._prefills.pop(0)[0], seconds)

    def _look_for_copies(self) -> None:
        try:
            self.decoder.look_for_copies()
        except Exception as error:
            self._drop_drafter(error)

    def _begin_step(self, plan: StepPlan) -> None:
        try:
            self.decoder.begin_step(plan)
        except Exception as error:
            self._drop_drafter(error)

    def _drop_drafter(self, error: Exception) -> None:
        """Decode without drafts from now on."""
        if self.drafter_error is not None:  # not the drafter's: there is none any more
            raise error
        self.drafter_error = str(error)
        kind = type(self.decoder.drafter).__name__
        self.decoder.drafter = NoDrafter(NoDraft.FAILED)
        self.decoder.plan = Fixed(self.decoder.plan.max_draft_tokens)  # so that every step says why it has no draft
        if self.recorder is not None:
            self.recorder.forget()
        message = f"{kind} failed, decoding goes on without drafts: {type(error).__name__}: {error}"
        logger.error("%s%s", message, "" if error.__traceback__ is None else f" ({HOW_TO_SEE})")
        logger.debug("where %s failed", kind, exc_info=error)


def ops_for(device: torch.device) -> Ops:
    """The fastest operations of a step there are on ``device``."""
    if device.type == "cpu":
        try:
            return CpuOps()
        except KernelError as error:
            warn_eager(str(error))
    return TensorOps()


def runner_for(decoder: Decoder, *, eager: bool = False) -> Runner:
    """What takes the steps of ``decoder`` fastest: with recorded steps and results read late, where the device runs
    behind the host. ``eager`` keeps from both.
    """
    if eager or decoder.batch.device.type != "cuda":
        return Runner(decoder)
    recorded = isinstance(decoder.target.unguided, DecoderLM)
    graphs = CudaGraphs(decoder.batch.device) if recorded else None
    return Runner(decoder, reader=AsyncReader(decoder), graphs=graphs)
