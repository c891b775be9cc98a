"""A server of the tiny pair, in the same process: requests reach it without sockets."""

import asyncio
import json
from contextlib import asynccontextmanager
from functools import cache

import httpx

from paceline.api import Engine, load
from paceline.serve.app import make_app
from paceline.serve.settings import Limits, Settings
from tests.api.checkpoints import pair

PROMPT = "def add(first, second):"
TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"  # noqa: E501


@cache
def target():
    found = load(pair().target)
    found.tokenizer.inner.chat_template = TEMPLATE
    return found


def engine(**options):
    return Engine(target(), **{"drafter": str(pair().draft), "num_draft_tokens": 3, "batch_size": 4, **options})


@asynccontextmanager
async def serving(*, limits=None, api_key=None, metrics=False, steps=False, **options):
    """A client of a server that runs."""
    settings = Settings(
        names=("tiny", "alias"),
        api_keys=(api_key,) if api_key else (),
        limits=limits or Limits(),
        per_request_metrics=metrics,
        return_steps=steps,
    )
    served = {name: options.pop(name) for name in ("max_waiting",) if name in options}
    app = make_app(engine(**options), settings, **served)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
            yield client


def running(check):
    """``check`` in an event loop of its own, sixty seconds at most."""

    async def bounded():
        await asyncio.wait_for(check, 60)

    asyncio.run(bounded())


async def events(client, path, body):
    """The events of a stream, the last of which is [DONE]."""
    found = []
    async with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            if line:
                assert line.startswith("data: ")
                found.append(line.removeprefix("data: "))
    assert found[-1] == "[DONE]"
    return [json.loads(one) for one in found[:-1]]
