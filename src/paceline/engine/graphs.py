"""Steps recorded once and replayed: the device then runs through them without being called for each operation.

A step is the same operations on the same tensors for each plan, flags of the batch and host state of the drafter, so
one recording serves for each of these. Knows nothing of what a step does.
"""

import logging
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, final

import torch

from paceline.core.clock import Phase
from paceline.core.plan import StepPlan
from paceline.decode import Decoder, without_gradients
from paceline.engine.guard import unguarded

logger = logging.getLogger("paceline")

WARM_UP = 2  # steps of a kind that are called before it is recorded: libraries prepare themselves at first use
MOST_RECORDED = 32  # kinds of step; any further are called
MOST_COUNTED = 256  # kinds that are remembered until they are recorded


class Graph(Protocol):
    """Operations in their order, on the tensors that they were recorded with."""

    def replay(self) -> None:
        """Do them again."""
        ...


class Graphs(Protocol):
    """Records what is called, without doing it. Pieces share memory, so those of a step are replayed in order."""

    def aside(self) -> AbstractContextManager[None]:
        """Where steps are called before they are recorded."""
        ...

    def recording(self) -> AbstractContextManager[None]:
        """Nothing that is called within is done. Left by an error, it drops the piece that was begun."""
        ...

    def begin(self) -> None:
        """Begin a piece, within ``recording``. Raises RuntimeError where the device refuses."""
        ...

    def end(self) -> Graph:
        """The piece that was begun. Raises RuntimeError if something was called that cannot be recorded."""
        ...


@final
class CudaGraphs:
    """CUDA graphs on a stream of their own; all of them share one pool of memory.

    They may, although they are replayed in any order: nothing that lies in the pool is read by a later step.
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
        """The piece, ready to run."""
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
class _Piece:
    graph: Graph
    phase: Phase  # which it ends


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    pieces: list[_Piece]
    after: Hashable  # the drafter's host state


@final
class _Cutter:
    """A clock that ends a piece with every phase, so that phases can be timed between them."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs
        self.pieces: list[_Piece] = []

    def mark(self, phase: Phase) -> None:
        self.pieces.append(_Piece(graph=self._graphs.end(), phase=phase))
        if phase is not Phase.REST:
            self._graphs.begin()


@final
class GraphedStep:
    """Does a decoder's steps, in place of its ``step``: the first few of a kind by calling them, the rest by replaying.

    The kind is recorded behind the last of the called steps, once that is done and its phases are marked: whatever goes
    wrong then has cost nothing, and the time belongs to no phase. Where recording fails, one warning says so, and
    nothing more is recorded. Steps that look up log-probabilities leave tensors for the host and are always called;
    so are those in which rules are asked on the host, and those of drafters whose host state is not known.
    """

    def __init__(self, *, decoder: Decoder, graphs: Graphs) -> None:
        self._decoder, self._graphs = decoder, graphs
        self._counted: OrderedDict[Hashable, int] = OrderedDict()  # steps of a kind that were called
        self._recorded: dict[Hashable, _Recorded] = {}
        self._works = True  # as far as is known
        self.num_called = self.num_replayed = 0

    @property
    def num_recorded(self) -> int:
        """Kinds of step that are replayed."""
        return len(self._recorded)

    def __call__(self) -> None:
        """One step."""
        with without_gradients():
            plan = self._decoder.plan(self._decoder.stats)
            before = self._decoder.drafter.host_state
            kind = None if before is None else (plan, self._decoder.batch.flags, before)
            if self._decoder.batch.wants_logprobs or self._decoder.lane.busy:
                kind = None
            recorded = self._recorded.get(kind)
            if recorded is not None:
                self._replay(recorded)
                return
            self.num_called += 1
            if kind is None or not self._works or len(self._recorded) >= MOST_RECORDED:
                self._decoder.run(plan)
                return
            with self._graphs.aside():
                self._decoder.run(plan)
            if self._count(kind) >= WARM_UP:
                self._record(kind, plan, before)

    def _replay(self, recorded: _Recorded) -> None:
        self.num_replayed += 1
        for piece in recorded.pieces:
            piece.graph.replay()
            self._decoder.clock.mark(piece.phase)
        self._decoder.drafter.resume(recorded.after)

    def _count(self, kind: Hashable) -> int:
        count = self._counted.pop(kind, 0) + 1
        self._counted[kind] = count
        if len(self._counted) > MOST_COUNTED:
            self._counted.popitem(last=False)
        return count

    def _record(self, kind: Hashable, plan: StepPlan, before: Hashable) -> None:
        """Record a step of this kind, without doing it."""
        decoder = self._decoder
        clock, now = decoder.clock, decoder.drafter.host_state
        cutter = _Cutter(self._graphs)
        decoder.clock = cutter
        try:
            decoder.drafter.resume(before)
            if decoder.drafter.host_state != before:
                return  # it has failed in the step that was called last, and no such step comes again
            with unguarded(), self._graphs.recording():
                self._graphs.begin()
                decoder.run(plan)
            self._recorded[kind] = _Recorded(pieces=cutter.pieces, after=decoder.drafter.host_state)
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
            decoder.clock = clock
            decoder.drafter.resume(now)
