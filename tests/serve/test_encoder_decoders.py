"""Encoder-decoders of texts, served as completions: the offline engine's tokens of every source, drafted and plain."""

import asyncio
from contextlib import asynccontextmanager

import httpx
import pytest

from paceline.api import Engine, load
from paceline.serve.app import make_app
from paceline.serve.settings import Settings
from tests.models.encoder_decoders import pair
from tests.serve.served import events, running

PATH = "/v1/completions"
SOURCES = [[5, 6, 7, 8], [9, 10], [11, 5, 11, 5, 11]]
OPTIONS = {"max_tokens": 8, "temperature": 0.9, "seed": 4}


def engine(kind, drafter):
    return Engine(
        load(pair(kind)[0]), drafter=drafter, batch_size=2, max_length=20, num_draft_tokens=3 if drafter else 0
    )


@asynccontextmanager
async def serving(kind, drafter):
    app = make_app(engine(kind, drafter), Settings(names=("tiny",)))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
            yield client


@pytest.mark.parametrize("kind", ["t5", "bart"])
@pytest.mark.parametrize("drafter", [None, "ngram"])
def test_sources_are_completed(kind, drafter):
    async def check():
        wanted = [list(one.token_ids) for one in engine(kind, None).generate(SOURCES, **OPTIONS)]
        async with serving(kind, drafter) as client:
            body = {**OPTIONS, "prompt": SOURCES, "return_token_ids": True}
            answer = (await client.post(PATH, json=body)).json()
            assert [choice["token_ids"] for choice in answer["choices"]] == wanted
            found = [[], [], []]
            for event in await events(client, PATH, body):
                found[event["choices"][0]["index"]] += event["choices"][0]["token_ids"]
            assert found == wanted
            one = {**OPTIONS, "prompt": SOURCES[:1], "return_token_ids": True}
            several = await asyncio.gather(*(client.post(PATH, json=one) for _ in range(5)))
            assert all(response.json()["choices"][0]["token_ids"] == wanted[0] for response in several)

    running(check())


@pytest.mark.parametrize(
    "option",
    [{"echo": True}, {"truncate_prompt_tokens": 2}, {"add_special_tokens": False}, {"prompt_logprobs": 1}],
    ids=str,
)
def test_options_of_a_prompts_tokens_are_refused(option):
    async def check():
        async with serving("t5", None) as client:
            response = await client.post(PATH, json={**OPTIONS, "prompt": SOURCES, **option})
            (name,) = option
            assert response.status_code == 400 and response.json()["error"]["param"] == name

    running(check())
