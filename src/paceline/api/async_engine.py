"""``AsyncEngine``: one thread runs an engine for any number of asyncio tasks."""

import asyncio
import contextvars
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar, Unpack, final
from weakref import WeakValueDictionary

import torch

from paceline.api.async_streams import AsyncStream, DeadlineError, DrainingError, EngineError, OverloadedError
from paceline.api.engine import Engine
from paceline.api.fair_queue import FairQueue
from paceline.api.prompts import EncodedPrompt, Prompts
from paceline.api.requests import ParamsLike, RequestOptions
from paceline.api.results import Piece, Result
from paceline.api.sampling_options import SamplingOptions, with_options
from paceline.api.submissions import Observer, Silent, Submission, fulfil
from paceline.api.values import count as counted
from paceline.core.constraint import Constraint

logger = logging.getLogger("paceline")
T = TypeVar("T")
READ_SECONDS = 30.0  # that a reader of the engine waits for the end of a step


@final
class AsyncEngine:
    """``engine`` for asyncio: a thread of its own runs its steps, and tasks submit and read without waiting for them.

    - ``engine``: an ``Engine``, which nobody else may use from then on.
    - ``max_waiting`` (256): submissions that wait for rows at most; further ones are refused with OverloadedError.
    - ``max_waiting_tokens`` (None): their tokens at most, prompts and ``max_tokens``; None is no limit.
    - ``observer`` (None): is told of steps, tokens and results as they come.

    Waiting submissions get rows by ``priority``, and among equals so that every ``client`` has its share of the tokens.
    ``async with`` starts the thread and ends it; requests that are left are cancelled.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        max_waiting: int = 256,
        max_waiting_tokens: int | None = None,
        observer: Observer | None = None,
    ) -> None:
        counted(1, "at least 1")("max_waiting", max_waiting)
        counted(1, "at least 1", optional=True)("max_waiting_tokens", max_waiting_tokens)
        self.engine, self.max_waiting, self.max_waiting_tokens = engine, max_waiting, max_waiting_tokens
        self._observer = observer or Silent()
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # for the thread
        self._waiting: FairQueue[Submission] = FairQueue()
        self._running: dict[int, Submission] = {}
        # Weak, so that a stream which its task has forgotten is collected, and with that cancelled.
        self._streams: WeakValueDictionary[int, AsyncStream] = WeakValueDictionary()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._numbers, self._pending, self._pending_tokens = 0, 0, 0
        self.draining = self._stopping = False  # whether it takes no more requests, and whether its thread ends
        self._ended: asyncio.Event | None = None

    async def __aenter__(self) -> "AsyncEngine":
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        # Threads begin with settings of their own: the number of threads of torch, and context variables.
        run = partial(contextvars.copy_context().run, self._run, torch.get_num_threads())
        self._thread = threading.Thread(target=run, name="paceline engine", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None and self._thread.is_alive() and not self._stopping

    @property
    def num_open(self) -> int:
        """Submissions that have not ended."""
        return len(self._streams)

    @property
    def num_waiting(self) -> int:
        """Submissions that have no row yet."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Submissions that have been given rows, or are the next to get some."""
        return len(self._running)

    async def submit(
        self,
        prompts: Prompts | Sequence[EncodedPrompt],
        params: ParamsLike = None,
        *,
        priority: int = 0,
        client: str = "",
        timeout: float | None = None,
        draft_store: str | None = None,
        steps: bool = False,
        num_draft_tokens: int | None = None,
        drafter: str | None = None,
        constraints: Sequence[Constraint] = (),
        keep_scores: bool = False,
        **options: Unpack[SamplingOptions],
    ) -> AsyncStream:
        """Queue prompts as ``Engine.submit`` does, which has the arguments; texts are encoded in another thread.

        - ``priority`` (0): smaller ones get rows first.
        - ``client`` (""): whose request it is, for fairness; and what it copies from, unless ``draft_store`` is given.
        - ``steps`` (False), ``num_draft_tokens`` (None) and ``drafter`` (None): as in ``Engine.submit``.
        - ``timeout`` (None): seconds from now after which it ends with DeadlineError.

        Raises what ``Engine.submit`` does, OverloadedError, DrainingError, and EngineError where the thread has ended.
        """
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout={timeout}: give a positive number of seconds, or None")
        self._check_open()
        if self._pending >= self.max_waiting:
            raise OverloadedError(
                f"{self._pending} requests wait, and at most {self.max_waiting} may (max_waiting): try again later"
            )
        self._pending += 1
        try:
            params = with_options(self.submit, params, options)
            more = RequestOptions(steps=steps, num_draft_tokens=num_draft_tokens, drafter=drafter)
            more |= RequestOptions(keep_scores=keep_scores, draft_store=client if draft_store is None else draft_store)
            prepared = await asyncio.to_thread(partial(self.engine.prepare, prompts, params, constraints, **more))
            self._check_open()
            self._numbers += 1
            deadline = math.inf if timeout is None else time.monotonic() + timeout
            entry = Submission(self._numbers, prepared, deadline)
            limit = self.max_waiting_tokens
            if limit is not None and self._pending_tokens and self._pending_tokens + entry.num_tokens > limit:
                raise OverloadedError(
                    f"requests of {self._pending_tokens} tokens wait, and with these {entry.num_tokens} they would "
                    f"exceed {limit} (max_waiting_tokens): try again later, or lower max_tokens"
                )
        except BaseException:
            self._pending -= 1
            raise
        self._pending_tokens += entry.num_tokens
        cancel = partial(self._orders.put, partial(self._cancel, entry.number))
        stream = AsyncStream(cancel, prompt_lengths=entry.prompt_lengths)
        self._streams[entry.number] = stream
        self._orders.put(partial(self._add, entry, client, priority))
        return stream

    async def generate(
        self, prompts: Prompts, params: ParamsLike = None, **options: Unpack[SamplingOptions]
    ) -> list[Result]:
        """The results of ``submit``; if the task is cancelled, so is the generation."""
        async with await self.submit(prompts, params, **options) as stream:
            return await stream.results()

    async def read(self, look: Callable[[], T]) -> T:
        """What ``look`` finds in the engine's thread, between two steps. Raises EngineError where that has ended."""
        if not self.alive:
            raise EngineError("the engine's thread does not run")
        found: Future[T] = Future()
        self._orders.put(partial(fulfil, found, look))
        return await asyncio.wait_for(asyncio.wrap_future(found), READ_SECONDS)

    async def drain(self, timeout: float | None = None) -> bool:
        """Take no more requests, and wait until those that there are have ended, ``timeout`` seconds at most (None: as
        long as it takes). Returns whether they have.
        """
        self.draining = True
        end = math.inf if timeout is None else time.monotonic() + timeout
        while self._streams and self.alive and time.monotonic() < end:
            await asyncio.sleep(0.01)
        return not self._streams

    async def close(self) -> None:
        """End the thread; requests that are left are cancelled."""
        self.draining = True
        if self._thread is not None and self._ended is not None and not self._ended.is_set():
            self._orders.put(self._stop)
            await self._ended.wait()
            self._thread.join()

    def _check_open(self) -> None:
        if self.draining:
            raise DrainingError("the engine is ending, and takes no more requests")
        if not self.alive:
            raise EngineError("the engine has ended" if self._thread else "enter the AsyncEngine with `async with`")

    # What follows runs in the engine's thread; from ``_finish`` on, in the event loop.

    def _run(self, num_threads: int) -> None:
        assert self._loop is not None and self._ended is not None
        torch.set_num_threads(num_threads)
        reason = "the engine has ended"
        try:
            while not self._stopping:
                self._obey()
                self._expire()
                self._advance()
            for entry in (*self._waiting, *self._running.values()):
                self._end(entry, None)
        except BaseException as error:  # a fault of this class, not of a step
            logger.exception("the engine's thread has ended")
            reason = f"the engine has ended by an error: {error}"
        finally:
            self._stopping = True
            for entry in self._running.values():
                entry.stream = None  # while this thread still has the scheduler to itself
            self._tell(self._finish, reason)

    def _obey(self) -> None:
        """Do what tasks asked for; wait for something where there is nothing else to do."""
        wait = not (self._running or len(self._waiting))
        while True:
            try:
                order = self._orders.get() if wait else self._orders.get_nowait()
            except queue.Empty:
                return
            wait = False
            order()

    def _add(self, entry: Submission, client: str, priority: int) -> None:
        self._waiting.push(entry, num_tokens=entry.num_tokens, client=client, priority=priority)

    def _stop(self) -> None:
        self._stopping = True

    def _cancel(self, number: int) -> None:
        entry = self._running.get(number) or next((one for one in self._waiting if one.number == number), None)
        if entry is not None:
            self._end(entry, None)

    def _expire(self) -> None:
        now = time.monotonic()
        for entry in [one for one in (*self._waiting, *self._running.values()) if one.deadline <= now]:
            taken = entry.deadline - entry.submitted
            self._end(entry, f"the request took longer than its {taken:.3g} s (timeout)")

    def _advance(self) -> None:
        """Give waiting submissions to the scheduler while rows are free for them, and run a step."""
        while len(self._waiting) and sum(one.num_left for one in self._running.values()) < self.engine.decoder.rows:
            entry = self._waiting.pop()
            entry.waited = time.monotonic() - entry.submitted
            entry.stream = self.engine.enqueue(entry.prepared)
            self._running[entry.number] = entry
            self._tell(self._admitted, entry.num_tokens)
        if not self._running:
            return
        try:
            self.engine.advance()
        except Exception as error:
            logger.exception("a step failed; the requests that took part in it are ended")
            self._fail(list(self._running.values()), error)
            return
        now, observer = time.monotonic(), self._observer
        observer.stepped(self.engine.scheduler.num_running)
        for entry in list(self._running.values()):
            assert entry.stream is not None
            pieces = entry.stream.take()
            entry.note(pieces, now, observer)
            entry.num_left -= sum(piece.finish_reason is not None for piece in pieces)
            if entry.stream.done:
                self._end(entry, None, pieces)
            elif pieces:
                self._tell(self._deliver, entry.number, pieces, None, None)

    def _end(self, entry: Submission, expired: str | None, pieces: Sequence[Piece] = ()) -> None:
        """Take ``entry`` out, with what it has; ``expired`` says that its time was over."""
        self._take_out(entry)
        stream = entry.stream or self.engine.enqueue(entry.prepared)  # which is ended before it begins
        entry.stream = None  # its statistics are forgotten with it, here, in the thread of the scheduler
        stream.close()
        pieces, results = (*pieces, *stream.take()), stream.results()
        self._observer.ended(results, entry.waited)
        error = None if expired is None else DeadlineError(expired, results)
        self._tell(self._deliver, entry.number, pieces, results, error)

    def _fail(self, entries: Iterable[Submission], error: BaseException) -> None:
        for entry in entries:
            self._take_out(entry)
            self._observer.failed(entry.num_left)
            if entry.stream is not None:
                entry.stream.close()
                entry.stream = None
            self._tell(self._deliver, entry.number, (), None, EngineError(f"a step failed: {error}"))

    def _take_out(self, entry: Submission) -> None:
        if self._running.pop(entry.number, None) is None and self._waiting.remove(entry):
            self._tell(self._admitted, entry.num_tokens)

    def _tell(self, order: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(order, *arguments)

    def _finish(self, reason: str) -> None:
        """The thread has ended: so have the requests that it left, or never saw."""
        assert self._ended is not None
        self._ended.set()
        for number in list(self._streams):
            self._deliver(number, (), None, EngineError(reason))

    def _admitted(self, num_tokens: int) -> None:
        self._pending -= 1
        self._pending_tokens -= num_tokens

    def _deliver(
        self, number: int, pieces: Sequence[Piece], results: list[Result] | None, error: Exception | None
    ) -> None:
        if stream := (self._streams.get if results is None and error is None else self._streams.pop)(number, None):
            stream.deliver(pieces, results, error)
