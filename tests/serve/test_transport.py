"""What reaches the routes: keys cover every one, pages of others are refused. How streams are cut; routes of status."""

import asyncio
from itertools import pairwise

import httpx

from paceline.serve.app import make_app
from paceline.serve.settings import Limits, Settings
from tests.serve.served import PROMPT, engine, events, running, serving, target

LOCAL = {"hosts": ("localhost", "127.0.0.1", "::1")}


def asking(settings, check):
    """``check`` with a client of an application with these settings."""

    async def run():
        app = make_app(engine(batch_size=1), Settings(names=("tiny",), **settings))
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
                await check(client, app)

    running(run())


def test_a_key_covers_every_route_and_any_of_several_opens_all():
    async def check(client, app):
        schema = app.openapi()
        paths = [(method, path.replace("{name}", "tiny")) for path, ways in schema["paths"].items() for method in ways]
        assert len(paths) > 10
        unlisted = [("get", "/"), ("get", "/openapi.json"), ("get", "/nowhere"), ("head", "/health"), ("post", "/ping")]
        for method, path in [*paths, *unlisted]:
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "second"}):
                response = await client.request(method, path, headers=headers)
                assert response.status_code == 401, (method, path)
        for key in ("first", "second"):
            for path in ("/health", "/metrics", "/openapi.json", "/v1/models"):
                assert (await client.get(path, headers={"authorization": f"Bearer {key}"})).status_code == 200

    asking({"api_keys": ("first", "second")}, check)


def test_no_page_loads_scripts_from_elsewhere():
    async def check(client, _):
        for path in ("/docs", "/redoc"):
            assert (await client.get(path)).status_code == 404

    asking({}, check)


def test_without_a_key_neither_foreign_names_nor_foreign_scripts_are_answered():
    async def check(client, _):
        good = [{}, {"host": "127.0.0.1:9"}, {"host": "[::1]:80"}, {"origin": "http://localhost:8000"}]
        for headers in good:
            assert (await client.get("/v1/models", headers=headers)).status_code == 200, headers
        bad = [{"host": "evil.example:8000"}, {"host": ""}, {"host": "[bad"}, {"origin": "http://evil.example"}]
        bad += [{"origin": "null"}, {"origin": "http://localhost:3000"}]
        for headers in bad:
            response = await client.get("/v1/models", headers=headers)
            assert response.status_code == 403 and "access-control-allow-origin" not in response.headers, headers
            assert response.headers["connection"] == "close"

    asking(LOCAL, check)


def test_scripts_of_allowed_pages_are_answered_and_may_ask_beforehand_without_a_key():
    page = "https://app.example"

    async def check(client, _):
        asked = {"origin": page, "access-control-request-method": "POST"}
        before = await client.options("/v1/completions", headers=asked)
        assert before.status_code == 200 and before.headers["access-control-allow-origin"] == page
        headers = {"origin": page, "authorization": "Bearer key"}
        assert (await client.get("/v1/models", headers=headers)).headers["access-control-allow-origin"] == page
        other = await client.get("/v1/models", headers={**headers, "origin": "https://other.example"})
        assert "access-control-allow-origin" not in other.headers

    asking({"api_keys": ("key",), "allowed_origins": (page,)}, check)

    async def local(client, _):
        assert (await client.get("/v1/models", headers={"origin": page})).status_code == 200

    asking({**LOCAL, "allowed_origins": (page,)}, local)


def test_a_body_that_does_not_come_is_not_waited_for():
    async def check(_, app):
        sent = []

        async def never():
            await asyncio.sleep(60)

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/tokenize", "headers": [], "query_string": b""}
        scope |= {"http_version": "1.1", "scheme": "http", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2)}
        await app(scope, never, send)
        assert [one["status"] for one in sent if one["type"] == "http.response.start"] == [408]

    asking({"limits": Limits(body_seconds=0.05)}, check)


def test_status_routes():
    async def check():
        async with serving() as client:
            for method, path in [("HEAD", "/health"), ("GET", "/ping"), ("POST", "/ping"), ("HEAD", "/metrics")]:
                response = await client.request(method, path)
                assert (response.status_code, response.content) == (200, b"")
            assert (await client.get("/load")).json() == {"server_load": 0}
            info = (await client.get("/tokenizer_info")).json()
            inner = target().tokenizer.inner
            assert info["eos_token"] == inner.eos_token and info["bos_token"] == inner.bos_token
            assert info["chat_template"] == inner.chat_template and info["tokenizer_class"]

    running(check())


def test_every_event_says_what_was_read_and_written_so_far():
    async def check():
        async with serving() as client:
            asked = {"include_usage": True, "continuous_usage_stats": True}
            for path, body in (
                ("/v1/completions", {"prompt": [PROMPT, "x"], "max_tokens": 12, "ignore_eos": True}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 12}),
            ):
                found = await events(client, path, {**body, "stream_options": asked})
                usages = [one["usage"] for one in found]
                assert usages[-1] == usages[-2] and not found[-1]["choices"]
                assert len({one["prompt_tokens"] for one in usages}) == 1 and usages[0]["prompt_tokens"] > 0
                written = [one["completion_tokens"] for one in usages]
                assert written == sorted(written) and written[0] < written[-1]

    running(check())


def test_events_of_a_fixed_number_of_tokens_do_not_tell_what_was_accepted():
    async def check(client, _):
        body = {"prompt": PROMPT, "max_tokens": 25, "ignore_eos": True, "n": 2, "seed": 1}
        options = {"stream_options": {"continuous_usage_stats": True}}
        found = await events(client, "/v1/completions", {**body, **options})
        choices = [one["choices"][0] for one in found]
        for index in (0, 1):
            own = [one for one in choices if one["index"] == index]
            assert len(own) == 7  # of 4 tokens each, and one
            assert [one["finish_reason"] for one in own] == [None] * 6 + ["length"]
        written = [0, *(one["usage"]["completion_tokens"] for one in found)]
        assert sorted(after - before for before, after in pairwise(written)) == [1, 1] + [4] * 12
        whole = (await client.post("/v1/completions", json=body)).json()["choices"]
        texts = ["".join(one["text"] for one in choices if one["index"] == index) for index in (0, 1)]
        assert texts == [one["text"] for one in whole]

    asking({"stream_interval": 4}, check)
