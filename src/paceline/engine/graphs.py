"""Records steps as graphs and replays them, which saves the launch of every operation.

The operations of a step and their tensors depend only on the plan, the flags of the batch, the presence of guided rows,
the taps and the drafter's host state. These are the kind of a step; each kind is recorded once.
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

WARM_UP = 2  # eager steps of a kind before it is recorded: libraries initialise at first use
MAX_RECORDED = 32  # kinds of step; all others stay eager
MAX_COUNTED = 256  # kinds that are counted until they are recorded


class Graph(Protocol):
    """A recorded sequence of operations on the tensors that it was recorded with."""

    def replay(self) -> None:
        """Run the operations again."""
        ...


class Graphs(Protocol):
    """Records operations without executing them. The graphs of a step share memory and are replayed in order."""

    def aside(self) -> AbstractContextManager[None]:
        """The context for the eager steps before a recording."""
        ...

    def recording(self) -> AbstractContextManager[None]:
        """The context in which graphs are recorded and nothing is executed. An error drops the unfinished graph."""
        ...

    def begin(self) -> None:
        """Begin a graph, within ``recording``. Raises RuntimeError if the device refuses."""
        ...

    def end(self) -> Graph:
        """Finish the graph. Raises RuntimeError if an operation cannot be recorded."""
        ...


@final
class CudaGraphs:
    """CUDA graphs on a stream of their own, with one memory pool for all of them.

    Sharing the pool is safe in any order of replay, because no step reads what an earlier one left in the pool.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._open: torch.cuda.CUDAGraph | None = None
        self._used = False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Use the recording stream, ordered after the work queued before and before the work queued later."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            current.wait_stream(self._stream)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Wait for the device, and the first time release the allocator's unused memory for the pool."""
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
        """Begin a capture that lets other threads use the device."""
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        self._open = graph

    def end(self) -> Graph:
        """The captured graph."""
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
        """Run the step."""
        for graph in self.graphs:
            graph.replay()
            timer.mark()
        decoder.drafter.resume(self.after)


@final
class Recorder:
    """The recorded steps of a decoder, by kind.

    A kind is recorded after its first WARM_UP eager steps, when the last of them is complete and timed, so a failed
    recording loses nothing. After a failure a warning is logged once and all further steps stay eager. Steps that look
    up log-probabilities or report rejected tokens, steps with host constraints, and steps of drafters with unknown host
    state are not recorded.
    """

    def __init__(self, *, decoder: Decoder, graphs: Graphs) -> None:
        self._decoder, self.graphs = decoder, graphs
        self._counted: OrderedDict[Hashable, int] = OrderedDict()  # eager steps by kind
        self._recorded: dict[Hashable, RecordedStep] = {}
        self._works = True  # until a recording fails

    @property
    def num_recorded(self) -> int:
        """Number of recorded kinds."""
        return len(self._recorded)

    def kind(self, plan: StepPlan) -> Hashable:
        """The kind of the next step under ``plan``; None if it cannot be recorded."""
        decoder = self._decoder
        state, batch = decoder.drafter.host_state, decoder.batch
        if state is None or batch.wants_tensors or decoder.constraints.busy:
            return None
        guided = decoder.guidance is not None and decoder.guidance.any  # then the target reads twice as many rows
        return plan, batch.flags, guided, decoder.taps, state

    def find(self, kind: Hashable) -> RecordedStep | None:
        """The recording of a kind."""
        return self._recorded.get(kind)

    def forget(self) -> None:
        """Drop all recordings, because the drafter has changed."""
        self._recorded.clear()
        self._counted.clear()

    def wants(self, kind: Hashable) -> bool:
        """Whether an eager step of this kind counts towards a recording."""
        return kind is not None and self._works and len(self._recorded) < MAX_RECORDED

    def called(self, kind: Hashable, plan: StepPlan, before: Hashable) -> None:
        """Count an eager step of this kind that began in the drafter's host state ``before``; record it when due."""
        count = self._counted.pop(kind, 0) + 1
        self._counted[kind] = count
        if len(self._counted) > MAX_COUNTED:
            self._counted.popitem(last=False)
        if count >= WARM_UP:
            self._record(kind, plan, before)

    def _record(self, kind: Hashable, plan: StepPlan, before: Hashable) -> None:
        """Record a step of this kind without executing it."""
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
                decoder.observe(tree, decoder.decide(tree, scores), scores)
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
