"""The server on a Ray cluster: Ray Serve runs replicas that each hold an engine, and starts lost ones anew. Requests
that begin alike go to the same replica, which has read their beginning; ``/metrics`` has the lines of all.
"""

# Ray is an extra, and its decorators have no types.
# pyright: reportMissingImports=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportFunctionMemberAccess=false, reportAttributeAccessIssue=false

import asyncio
import gc
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.api.engine import Engine
from paceline.serve.app import make_app
from paceline.serve.guard import Guard
from paceline.serve.settings import Settings

BEGINNING = 256  # characters of a prompt by which a replica is chosen
ROUTER = "ray.serve.experimental.consistent_hash_router:ConsistentHashRouter"
METRICS = "/metrics"
DELAYS = {"upscale_delay_s": 30.0, "downscale_delay_s": 600.0}  # how long a load lasts before replicas follow it


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """How many there are, and what each takes. With ``most``, there are between ``count`` and ``most``: as many as keep
    each at ``requests`` requests.
    """

    count: int = 1
    most: int | None = None
    requests: int = 8
    cpus: float = 1
    gpus: float = 0
    options: dict[str, Any] = field(default_factory=dict[str, Any])  # further ones of ``make_app``


def application(make: Callable[[], Engine], settings: Settings, replicas: Replicas) -> Application:
    """What ``ray.serve.run`` takes: a server of replicas that each ``make`` an engine."""
    scale: dict[str, Any] = {"num_replicas": replicas.count}
    if replicas.most is not None:
        bounds = {"min_replicas": replicas.count, "max_replicas": replicas.most}
        scale = {"autoscaling_config": {**bounds, **DELAYS, "target_ongoing_requests": replicas.requests}}
    engines = serve.deployment(
        Replica,
        name="engine",
        max_ongoing_requests=4 * replicas.requests,  # beyond which another replica is tried
        ray_actor_options={"num_cpus": replicas.cpus, "num_gpus": replicas.gpus},
        request_router_config=RequestRouterConfig(request_router_class=ROUTER),
        **scale,
    ).bind(make, replace(settings, api_keys=(), hosts=()), replicas.options)  # the front has asked for the key
    front = serve.deployment(Front, name="front", max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0})
    return front.bind(engines, settings)


@final
class Replica:
    """An engine behind the server's application, asked by method calls in the place of a socket."""

    def __init__(self, make: Callable[[], Engine], settings: Settings, options: dict[str, Any]) -> None:
        self._app = make_app(make(), settings, **options)
        self._living = self._app.router.lifespan_context(self._app)
        self._started: asyncio.Task[Any] | None = None
        gc.collect()
        gc.freeze()  # a collection that looked at all that is loaded would stop every request

    async def answer(self, scope: dict[str, Any], body: bytes) -> AsyncIterator[Any]:
        """Status and headers, and then the parts of the body. Closed, it leaves the request."""
        await self._start()
        sent: asyncio.Queue[Message | None] = asyncio.Queue()
        asked = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if asked:
                return asked.pop()
            await asyncio.Event().wait()  # the client is there until this task is cancelled
            raise AssertionError

        async def run() -> None:
            try:
                await self._app({**scope, "type": "http"}, receive, sent.put)
            finally:
                await sent.put(None)

        task = asyncio.create_task(run())
        try:
            while (message := await sent.get()) is not None:
                if message["type"] == "http.response.start":
                    yield message["status"], message["headers"]
                elif message.get("body"):
                    yield message["body"]
            await task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task

    async def metrics(self) -> tuple[str, str]:
        """Its name, and its page of metrics."""
        scope = {"method": "GET", "path": METRICS, "raw_path": METRICS.encode(), "query_string": b"", "headers": []}
        parts = [part async for part in self.answer(scope, b"")]
        return serve.get_replica_context().replica_id.unique_id, b"".join(parts[1:]).decode()

    async def check_health(self) -> None:
        """Raise RuntimeError when the engine has ended, so that Ray Serve starts another."""
        await self._start()
        if not self._app.state.engine.alive:
            raise RuntimeError("the engine has ended")

    async def _start(self) -> None:
        if self._started is None:
            self._started = asyncio.ensure_future(self._living.__aenter__())
        await asyncio.shield(self._started)


@final
class Front:
    """Takes requests and hands them to a replica."""

    def __init__(self, engines: Any, settings: Settings) -> None:
        self._engines = engines
        self._app = Guard(self._hand, settings)

    async def __call__(self, request: Request) -> Response:
        """The answer to any request."""
        return _Handed(self._app, request.receive)

    async def _hand(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == METRICS:
            found = await self._engines.broadcast("metrics").results_async()
            await Response(added(found), headers={"content-type": CONTENT_TYPE_LATEST})(scope, receive, send)
            return
        body = await Request(scope, receive).body()
        given = {name: scope[name] for name in ("method", "path", "raw_path", "query_string", "headers", "client")}
        handle = self._engines.options(stream=True, session_id=beginning(body))
        parts = handle.answer.remote({**given, "http_version": "1.1", "scheme": "http"}, body)
        begun = False
        async for part in parts:
            if begun:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            else:
                begun = True
                await send({"type": "http.response.start", "status": part[0], "headers": part[1]})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Handed(Response):
    """What an application makes of a request, in the form in which Ray Serve takes answers."""

    def __init__(self, app: ASGIApp, receive: Receive) -> None:
        super().__init__()
        self._app, self._receive = app, receive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, self._receive, send)


def beginning(body: bytes) -> str:
    """What requests that begin alike have in common: a hash of how the prompt, or the chat, begins."""
    try:
        asked = json.loads(body)
        prompt = asked.get("messages") or asked.get("prompt") or [asked.get("instructions"), asked.get("input")]
    except (ValueError, AttributeError, RecursionError):
        prompt = None
    text = prompt if isinstance(prompt, str) else json.dumps(prompt)
    return hashlib.sha256(text[:BEGINNING].encode("utf-8", "surrogatepass")).hexdigest()


def added(pages: Iterable[tuple[str, str]]) -> bytes:
    """One page of the metrics of all replicas: the label ``engine`` tells them apart, as vLLM's engines are."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Added(dict(pages)))
    return generate_latest(registry)


class _Added:
    def __init__(self, pages: dict[str, str]) -> None:
        self.pages = pages

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for name, text in self.pages.items():
            for family in text_string_to_metric_families(text):
                kept = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                kept.samples += [sample._replace(labels={**sample.labels, "engine": name}) for sample in family.samples]
        yield from families.values()
