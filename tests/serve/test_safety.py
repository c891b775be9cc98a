"""What a client must not reach: files, addresses, code, the time of others; and what it must not be told."""

import asyncio
import json
import re
from pathlib import Path

import pytest

import paceline.serve
from paceline.serve import grammar_guard
from paceline.serve.errors import ApiError, api_error, body_of
from paceline.serve.grammar_guard import GrammarGuard
from paceline.serve.settings import Limits
from tests.serve.served import PROMPT, engine, running, serving

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
FETCHING = (
    r"\b(import pickle|import shelve|import marshal|torch\.load|urlopen|import requests|import httpx|eval\(|exec\()"
)
BOMB = {"json": {"type": "integer", "multipleOf": 9999991}}  # an automaton of as many states
LONG = [  # options that are lists, and what is said
    ({"bad_words_ids": [[1] * 65]}, "bad_words_ids", "65 token ids, at most 64"),
    ({"bad_words_ids": [[1]] * 257}, "bad_words_ids", "257 entries, at most 256"),
    ({"sequence_bias": [[[1] * 65, 1.0]]}, "sequence_bias", "65 token ids, at most 64"),
    ({"bad_words": ["x" * 257]}, "bad_words", "257 characters, at most 256"),
    ({"allowed_token_ids": [1] * 4097}, "allowed_token_ids", "4097 entries, at most 4096"),
    ({"logit_bias": {str(token): 1 for token in range(4097)}}, "logit_bias", "4097 entries, at most 4096"),
]


def test_the_server_unpickles_and_fetches_nothing():
    files = [*Path(paceline.serve.__file__).parent.rglob("*.py")]
    assert len(files) > 8
    for file in files:
        assert not re.findall(FETCHING, file.read_text()), file
        assert "trust_remote_code" not in file.read_text(), file


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://127.0.0.1:1/x.png", "data:image/png;base64,AAAA"])
def test_no_part_of_a_request_is_fetched_or_opened(url, monkeypatch):
    opened = []

    async def check():
        async with serving() as client:
            monkeypatch.setattr("builtins.open", lambda file, *_, **__: opened.append(file))
            for kind in ("image_url", "input_image", "audio_url", "file", "video_url"):
                part = {"type": kind, kind: {"url": url}}
                body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, part]}]}
                found = await client.post(CHATS, json=body)
                assert found.status_code == 400 and kind in found.json()["error"]["message"]
            for path in (COMPLETIONS, CHATS, "/tokenize"):
                body = {"model": url, "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
                body.pop("messages" if path == COMPLETIONS else "prompt")
                assert (await client.post(path, json=body)).status_code == 404
            schema = {"structured_outputs": {"json": {"$ref": url}}}
            assert (await client.post(COMPLETIONS, json={"prompt": "x", **schema})).status_code == 400

    running(check())
    assert not [file for file in opened if "passwd" in str(file)]


@pytest.mark.parametrize("field", ["chat_template", "logits_processors", "prompt_embeds"])
def test_no_code_of_a_request_is_run(field):
    async def check():
        async with serving() as client:
            for path, body in (
                (COMPLETIONS, {"prompt": "x"}),
                (CHATS, {"messages": [{"role": "user", "content": "x"}]}),
            ):
                found = await client.post(path, json={**body, field: "{{ x.__class__ }}"})
                assert found.status_code == 400 and found.json()["error"]["param"] == field

    running(check())


def test_a_grammar_that_takes_long_is_refused_and_holds_nobody_up(monkeypatch):
    tried, try_ = [], GrammarGuard._try

    async def counted(self, tokenizer, definition):
        tried.append(definition)
        return await try_(self, tokenizer, definition)

    monkeypatch.setattr(GrammarGuard, "_try", counted)

    async def check():
        async with serving(limits=Limits(grammar_seconds=0.5)) as client:
            warm = {"prompt": PROMPT, "max_tokens": 3, "structured_outputs": {"regex": "a+"}}
            assert (await client.post(COMPLETIONS, json=warm)).status_code == 200
            bomb = {"prompt": PROMPT, "max_tokens": 3, "structured_outputs": BOMB}
            task = asyncio.create_task(client.post(COMPLETIONS, json=bomb))
            await asyncio.sleep(0.05)
            other = await client.post(COMPLETIONS, json={"prompt": PROMPT, "max_tokens": 1})
            assert other.status_code == 200 and not task.done()
            error = (await task).json()["error"]
            assert error["param"] == "structured_outputs"
            # On a fast machine it meets the limit of memory first.
            assert "longer than 0.5 s" in error["message"] or "more memory than" in error["message"]
            assert (await client.post(COMPLETIONS, json=bomb)).status_code == 400
            assert (await client.post(COMPLETIONS, json=warm)).status_code == 200
            other = {**warm, "structured_outputs": {"regex": "b+"}}
            assert (await client.post(COMPLETIONS, json=other)).status_code == 200  # by a process of its own, anew
            assert len(tried) == len(set(tried)) == 3, "each was tried once"

    running(check())


def test_a_grammar_has_so_much_processor_time_however_long_it_is_waited_for(monkeypatch):
    monkeypatch.setattr(grammar_guard, "PATIENCE", 1000)

    async def check():
        async with serving(limits=Limits(grammar_seconds=0.1)) as client:
            found = await client.post(COMPLETIONS, json={"prompt": PROMPT, "structured_outputs": BOMB})
            assert "longer than 0.1 s" in found.json()["error"]["message"]

    running(check())


def test_a_grammar_that_nothing_matches_is_refused_before_anything_is_begun():
    async def check():
        async with serving() as client:
            for asked in ({"json": {"$ref": "#"}}, {"grammar": "start: start start"}):
                found = (await client.post(COMPLETIONS, json={"prompt": "x", "structured_outputs": asked})).json()
                assert found["error"]["param"] == "structured_outputs" and "<state>" not in str(found)
                with pytest.raises(ValueError, match=r"structured_outputs: .*no text matches it"):
                    engine().submit("x", structured_outputs=asked)

    running(check())


def test_lists_are_limited_before_they_are_read():
    async def check():
        async with serving() as client:
            for options, field, said in LONG:
                error = (await client.post(COMPLETIONS, json={"prompt": "x", **options})).json()["error"]
                assert error["param"] == field and said in error["message"]

    running(check())


def test_messages_tell_nothing_of_the_server():
    secret = "tensor at 0x7f3a8c001000 of /home/user/models/secret-model/config.json refuses"
    for error in (ApiError(400, secret), api_error(ValueError(secret)), api_error(RuntimeError(secret))):
        message = body_of(error)["error"]["message"]
        assert "0x7f" not in message and "/home" not in message
    assert body_of(ApiError(400, secret))["error"]["message"] == "tensor at 0x... of config.json refuses"
    assert len(body_of(ApiError(400, "9" * 5000))["error"]["message"]) < 1300
    assert ApiError(400, "see https://example.com/a/b and a/b").message == "see https://example.com/a/b and a/b"


def test_methods_and_contents_that_are_not_taken_say_which_are():
    async def check():
        async with serving() as client:
            found = await client.get(COMPLETIONS)
            assert found.status_code == 405 and found.headers["allow"] == "POST"
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
                content = json.dumps({"prompt": "x"})
                found = await client.post(COMPLETIONS, content=content, headers={"content-type": kind})
                assert found.status_code == 415 and "application/json" in found.json()["error"]["message"]
            for field in ("prompt", "user", "stop", "model"):
                content = json.dumps({"prompt": "x", field: "\ud800"})
                found = await client.post(COMPLETIONS, content=content, headers={"content-type": "application/json"})
                assert found.status_code == 400 and "surrogate" in found.json()["error"]["message"]

    running(check())
