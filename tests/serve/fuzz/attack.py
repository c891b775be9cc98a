"""Serves a drafter of the fuzzer's target over ASGI, and sends made-up requests to it."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
from hypothesis import HealthCheck, given, seed, settings

from paceline.api import Engine
from paceline.serve.app import make_app
from paceline.serve.settings import Limits, Settings
from paceline.verifiers import VERIFIERS
from tests.fuzz import target
from tests.fuzz.cases import LENGTH
from tests.serve.fuzz.bodies import requests, taken
from tests.serve.fuzz.judge import BODY_BYTES, judge, judge_any, send
from tests.serve.fuzz.wire import in_chunks, messages

AT_ONCE = 4  # requests that are in the server together


def application(design=("none", "coupled", None)):
    """The server's, for a (drafter, verifier, shape) of ``designs``."""
    name, verifier, shape = design
    engine = Engine(
        target.loaded(eager=False),
        drafter=target.drafter(name, shape, eager=False),
        verifier=verifier,
        num_draft_tokens=3,
        batch_size=3,
        max_length=LENGTH,
    )
    return make_app(engine, Settings(names=("tiny",), limits=Limits(body_bytes=BODY_BYTES)))


@asynccontextmanager
async def client_of(app):
    """A client of ``app``, which is begun and ended."""
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=None) as client:
            yield client


def made_up(strategy, count, number):
    """``count`` examples of ``strategy``, the same for a ``number``."""
    found = []

    @seed(number)
    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def collect(example):
        found.append(example)

    collect()
    return found


def attack_with_bodies(design, count, number, tally):
    """Send ``count`` made-up completions to a server of ``design``; whatever was refused leaves the others alone."""
    kind = VERIFIERS.find(design[1])

    async def run():
        app = application(design)
        async with client_of(app) as client:
            cases = made_up(requests, count, number)
            for start in range(0, len(cases), AT_ONCE):
                group = cases[start : start + AT_ONCE]
                await asyncio.gather(*(judge(client, one, tally, same_tokens=kind.same_tokens) for one in group))
            engine = app.state.engine
            assert engine.alive and engine.num_running == engine.num_waiting == 0
            assert engine.engine.runner.drafter_error is None, design

    asyncio.run(run())


def attack_with_bytes(count, number, tally):
    """Send ``count`` made-up messages, each beside a request that has to be answered as ever."""

    async def run():
        async with client_of(application()) as client:
            (good,) = made_up(taken(), 1, number)[-1:]
            for method, path, headers, content, chunked in made_up(messages(), count, number):
                body = in_chunks(content) if chunked else content
                response = await send(client, body, path=path, method=method, headers=headers)
                tally.update([f"{response.status_code}", "requests"])
                judge_any(response, f"{method} {path} {headers} {content[:300]!r} chunked={chunked}")
                if len(content) > BODY_BYTES and method == "POST" and path == "/v1/completions":
                    assert response.status_code == 413, response.text
                if response.status_code == 200 and path == "/v1/completions":
                    assert isinstance(json.loads(content), dict)
            await judge(client, good, tally, same_tokens=True)

    asyncio.run(run())
