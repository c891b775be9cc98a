"""The process of a server: it announces itself, and ends by signals without cutting off what runs."""

import asyncio
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import final

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from paceline.api.async_engine import AsyncEngine

HEADER_BYTES = 64 << 10  # of a request's line and headers together
CONNECTIONS = 1000  # at once; further ones are answered 503
HEAD_SECONDS = 10.0  # in which its head has to come
IDLE_SECONDS = 5  # for which a connection is kept between two requests
WRITE_SECONDS = 5.0  # for which, at the end, a client has time to read what it was sent


@final
class BoundedProtocol(H11Protocol):
    """Closes a connection on which the head of a request has not come after ``HEAD_SECONDS``."""

    late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unwatch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:  # the head is here
            self._unwatch()
        elif self.late is None:
            self._watch()

    def _watch(self) -> None:
        self.late = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _unwatch(self) -> None:
        if self.late is not None:
            self.late.cancel()
            self.late = None


@final
class Process(uvicorn.Server):
    """Serves ``engine``, until a signal. The first lets running requests end, ``drain_seconds`` at most, while new ones
    are answered 503; the second cancels them. ``complete`` says whether all have ended by themselves.

    ``ready`` is called when requests are taken, and ``say`` with what happens at the end, in words.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        engine: AsyncEngine,
        *,
        drain_seconds: float,
        ready: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        super().__init__(config)
        self.engine, self.drain_seconds, self.ready, self.say = engine, drain_seconds, ready, say
        self.signals: list[int] = []
        self.complete = True
        self._ending: asyncio.Task[None] | None = None
        self._cutting: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.signals.append(sig)
        if len(self.signals) > 2:
            self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        if self._ending is None and (self.signals or not self.engine.alive):
            self._ending = asyncio.create_task(self._end())
        if self._cutting is None and len(self.signals) > 1:
            self.complete = False
            self._cutting = asyncio.create_task(self.engine.close())
        return await super().on_tick(counter)

    async def _end(self) -> None:
        if not self.engine.alive:
            self.complete = False
            self.say("the engine has ended; so does the server")
        elif self.engine.num_open:
            how = "the next signal cancels them"
            self.say(
                f"ending: waiting for open requests ({self.engine.num_open}), {self.drain_seconds:g} s at most; {how}"
            )
        if not await self.engine.drain(self.drain_seconds):
            self.complete = False
        await self.engine.close()  # cancels what is left
        self.should_exit = True


def configure(
    app: FastAPI,
    *,
    root_path: str = "",
    log_level: str = "warning",
    keyfile: Path | None = None,
    certfile: Path | None = None,
) -> uvicorn.Config:
    """How ``app`` is served. Nothing but HTTP/1.1 by h11, which bounds headers; what proxies say is not believed."""
    return uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="on",
        log_level=log_level,
        root_path=root_path,
        ssl_keyfile=keyfile,
        ssl_certfile=certfile,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=HEADER_BYTES,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=int(WRITE_SECONDS),
    )


def interrupted(process: Process) -> bool:
    """Whether it was a Ctrl-C that ended it."""
    return bool(process.signals) and process.signals[0] == signal.SIGINT
