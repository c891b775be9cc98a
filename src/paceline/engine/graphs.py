"""Steps recorded once and replayed: the device then runs through them without being called for each operation.

A step is the same operations on the same tensors for each plan, flags of the batch, presence of guided rows and host
state of the drafter, so one recording serves for each of these.
"""

import logging
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, final

import torch

from paceline.core.step import StepPlan
from paceline.decode import Decoder
from paceline.engine.timing import StepTimer

logger = logging.getLogger("paceline")

WARM_UP = 2  # steps of a kind that are called before it is recorded: libraries prepare themselves at first use
MAX_RECORDED = 32  # kinds of step; any further are called
MAX_COUNTED = 256  # kinds that are remembered until they are recorded


class Graph(Protocol):
    """Operations in their order, on the tensors that they were recorded with."""

    def replay(self) -> None:
        """Do them again."""
        ...


class Graphs(Protocol):
    """Records what is called, without doing it. Graphs of a step share memory: they are replayed in order."""

    def aside(self) -> AbstractContextManager[None]:
        """Where steps are called before they are recorded."""
        ...

    def recording(self) -> AbstractContextManager[None]:
        """Nothing that is called within is done. Left by an error, it drops the graph that was begun."""
        ...

    def begin(self) -> None:
        """Begin a graph, within ``recording``. Raises RuntimeError where the device refuses."""
        ...

    def end(self) -> Graph:
        """The graph that was begun. Raises RuntimeError if something was called that cannot be recorded."""
        ...


@final
class CudaGraphs:
    """CUDA graphs on a stream of their own; all of them share one pool of memory.

    They may, although they are replayed in any order: nothing in the pool is read by a later step.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._open: torch.cuda.CUDAGraph | None = None
        self._used = False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """On the stream of the recordings, in line with what was queued before and what is queued after."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            current.wait_stream(self._stream)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Waits for the device. The first time, what the allocator holds unused is given back, for the pool to take."""
        torch.cuda.synchronize(self._device)
        if not self._used:
            torch.cuda.empty_cache()
            self._used = True
        with torch.cuda.stream(self._stream):
            try:
                yield
            finally:
                if self._open is not None:
                    self._abandon()

    def begin(self) -> None:
        """Other threads of the program may go on using the device."""
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        self._open = graph

    def end(self) -> Graph:
        """The graph, ready to run."""
        graph, self._open = self._open, None
        assert graph is not None
        graph.capture_end()
        return graph

    def _abandon(self) -> None:
        try:
            self.end()
        except RuntimeError as error:
            logger.debug("an unfinished recording was dropped: %s", error)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """Draft, score and decide as graphs, and the drafter's host state after them."""

    graphs: tuple[Graph, Graph, Graph]
    after: Hashable

    def replay(self, decoder: Decoder, timer: StepTimer) -> None:
        """Do the step."""
        for graph in self.graphs:
            graph.replay()
            timer.mark()
        decoder.drafter.resume(self.after)


@final
class Recorder:
    """The recorded steps of a decoder, by kind.

    A kind is recorded behind the last of its first WARM_UP steps, once that is done and timed: whatever goes wrong
    then has cost nothing. Where recording fails, one warning says so, and nothing more is recorded. Steps that look up
    log-probabilities leave tensors for the host and have no kind; neither have those with constraints that the host
    applies, and those of drafters whose host state is not known.
    """

    def __init__(self, *, decoder: Decoder, graphs: Graphs) -> None:
        self._decoder, self.graphs = decoder, graphs
        self._counted: OrderedDict[Hashable, int] = OrderedDict()  # steps of a kind that were called
        self._recorded: dict[Hashable, RecordedStep] = {}
        self._works = True  # as far as is known

    @property
    def num_recorded(self) -> int:
        """Kinds of step that are replayed."""
        return len(self._recorded)

    def kind(self, plan: StepPlan) -> Hashable:
        """What the next step is under ``plan``; None where it cannot be recorded."""
        decoder = self._decoder
        state, batch = decoder.drafter.host_state, decoder.batch
        if state is None or batch.wants_logprobs or decoder.constraints.busy:
            return None
        guided = decoder.guidance is not None and decoder.guidance.any  # then the target reads twice as many rows
        return plan, batch.flags, guided, state

    def find(self, kind: Hashable) -> RecordedStep | None:
        """The recording of a kind."""
        return self._recorded.get(kind)

    def forget(self) -> None:
        """Drop all recordings: the decoder has another drafter."""
        self._recorded.clear()
        self._counted.clear()

    def wants(self, kind: Hashable) -> bool:
        """Whether a step of this kind, which is about to be called, counts toward a recording."""
        return kind is not None and self._works and len(self._recorded) < MAX_RECORDED

    def called(self, kind: Hashable, plan: StepPlan, before: Hashable) -> None:
        """A step of this kind has been called from the drafter's host state ``before``; record it in time."""
        count = self._counted.pop(kind, 0) + 1
        self._counted[kind] = count
        if len(self._counted) > MAX_COUNTED:
            self._counted.popitem(last=False)
        if count >= WARM_UP:
            self._record(kind, plan, before)

    def _record(self, kind: Hashable, plan: StepPlan, before: Hashable) -> None:
        """Record a step of this kind, without doing it."""
        decoder = self._decoder
        now = decoder.drafter.host_state
        try:
            decoder.drafter.resume(before)
            with self.graphs.recording():
                self.graphs.begin()
                tree = decoder.draft(plan)
                draft = self.graphs.end()
                self.graphs.begin()
                scores = decoder.score(tree)
                score = self.graphs.end()
                self.graphs.begin()
                decoder.drafter.observe(decoder.batch, tree, decoder.decide(tree, scores), scores.hidden)
                decide = self.graphs.end()
            self._recorded[kind] = RecordedStep(graphs=(draft, score, decide), after=decoder.drafter.host_state)
            del self._counted[kind]
        except Exception as error:
            self._works = False
            logger.warning(
                "steps are called one operation at a time, which is slower: recording one failed: %s: %s",
                type(error).__name__,
                error,
            )
            logger.debug("where recording failed", exc_info=error)
        finally:
            decoder.drafter.resume(now)
