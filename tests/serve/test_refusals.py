"""What a server refuses: 4xx in OpenAI's form that names the field, the value and the limit, and nothing is begun."""

import asyncio

import pytest

from paceline.serve.settings import Limits
from tests.serve.served import PROMPT, running, serving

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "x"}]
REFUSED = [  # path, body, status, field, what is said
    (COMPLETIONS, {}, 400, "prompt", "prompt: Field required"),
    (COMPLETIONS, {"prompt": []}, 400, "prompt", "prompt: an empty list"),
    (
        COMPLETIONS,
        {"prompt": PROMPT, "model": "gpt"},
        404,
        "model",
        "model 'gpt' does not exist; this server has tiny, a",
    ),
    (COMPLETIONS, {"prompt": PROMPT, "max_tokens": 0}, 400, "max_tokens", "max_tokens=0"),
    (COMPLETIONS, {"prompt": PROMPT, "max_tokens": 10_000}, 400, None, "max_tokens=10000 exceed the limit of 512"),
    (COMPLETIONS, {"prompt": PROMPT, "temperature": -1}, 400, "temperature", "temperature=-1"),
    (COMPLETIONS, {"prompt": PROMPT, "temperature": "hot"}, 400, "temperature", "temperature='hot'"),
    (COMPLETIONS, {"prompt": PROMPT, "top_p": 2}, 400, "top_p", "top_p=2"),
    (COMPLETIONS, {"prompt": PROMPT, "n": 0}, 400, "n", "n: Input should be greater than or equal to 1, not 0"),
    (COMPLETIONS, {"prompt": PROMPT, "n": 17}, 400, "n", "n=17: this server gives at most 16"),
    (COMPLETIONS, {"prompt": [PROMPT] * 65}, 400, "prompt", "65 prompts, at most 64"),
    (COMPLETIONS, {"prompt": [PROMPT] * 20, "n": 10}, 400, "n", "n=10 of 20 prompts: at most 128 outputs"),
    (COMPLETIONS, {"prompt": PROMPT, "logprobs": 21}, 400, "logprobs", "less than or equal to 20, not 21"),
    (COMPLETIONS, {"prompt": PROMPT, "stop": ["x"] * 17}, 400, "stop", "17 strings, at most 16"),
    (COMPLETIONS, {"prompt": PROMPT, "stop": "x" * 300}, 400, "stop", "300 characters, at most 256"),
    (COMPLETIONS, {"prompt": PROMPT, "echo": True, "stream": True}, 400, "echo", "echo with stream"),
    (COMPLETIONS, {"prompt": PROMPT, "suffix": "x"}, 400, "suffix", "suffix='x': no model fills in"),
    (COMPLETIONS, {"prompt": PROMPT, "best_of": 3}, 400, "best_of", "best_of=3: only n outputs"),
    (COMPLETIONS, {"prompt": PROMPT, "logit_bias": {"x": 1}}, 400, "logit_bias", "keys are token ids"),
    (COMPLETIONS, {"prompt": PROMPT, "tempreature": 1}, 400, "tempreature", "tempreature: no such option"),
    (COMPLETIONS, {"prompt": "x" * 40_000}, 400, "prompt", "40000 characters, too many for a context of 512"),
    (COMPLETIONS, {"prompt": [[1, 999_999]]}, 400, None, "999999 leave the target's vocabulary"),
    (COMPLETIONS, {"prompt": [-1]}, 400, "prompt", "prompt: Input should be greater than or equal to 0, not -1"),
    (
        COMPLETIONS,
        {"prompt": PROMPT, "response_format": {"type": "xml"}},
        400,
        "response_format.type",
        "Input should be",
    ),
    (COMPLETIONS, {"prompt": PROMPT, "structured_outputs": {"regex": "("}}, 400, "structured_outputs", "regex"),
    (
        COMPLETIONS,
        {"prompt": PROMPT, "structured_outputs": {"regex": "a" * 70_000}},
        400,
        "structured_outputs",
        "at most 65536 are taken",
    ),
    (CHATS, {"messages": []}, 400, "messages", "messages: List should have at least 1 item"),
    (CHATS, {"messages": USER, "top_logprobs": 3}, 400, "top_logprobs", "top_logprobs=3 needs logprobs"),
    (CHATS, {"messages": USER, "tools": [{"type": "function"}]}, 400, "tools", 'tools.0: give {"type": "function"'),
    (CHATS, {"messages": USER, "chat_template": "{{ x }}"}, 400, "chat_template", "the template is the server's"),
    (
        CHATS,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}]},
        400,
        "messages.0.content",
        "a part of type 'image_url'; only texts",
    ),
    (CHATS, {"messages": [{"content": "x"}]}, 400, "messages.0.role", "messages.0.role: Field required"),
    ("/tokenize", {}, 400, "prompt", "give one of prompt and messages"),
    ("/tokenize", {"prompt": "x", "chat_template": "y"}, 400, "chat_template", "Extra inputs are not permitted"),
    (
        COMPLETIONS,
        {"prompt": "x", "stream": True, "stream_options": {"include_obfuscation": True}},
        400,
        "stream_options.include_obfuscation",
        "Extra inputs are not permitted",
    ),
    ("/detokenize", {"tokens": [319]}, 400, "tokens", "319 is not in the vocabulary"),
    ("/v1/nothing", {}, 404, None, "Not Found"),
]


def test_every_refusal_names_the_field():
    async def check():
        async with serving() as client:
            for path, body, status, field, said in REFUSED:
                response = await client.post(path, json=body)
                error = response.json()["error"]
                case = f"{path} {str(body)[:80]}: {error}"
                assert (response.status_code, error["code"], error["param"]) == (status, status, field), case
                assert said in error["message"] and len(error["message"]) < 1500, case
                assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error"), case
            assert (await client.post(COMPLETIONS, json={"prompt": PROMPT, "max_tokens": 2})).status_code == 200

    running(check())


def test_bodies_that_are_no_json_or_too_large_are_refused():
    async def pieces():
        for _ in range(3):
            yield b"x" * 1000

    async def check():
        async with serving(limits=Limits(body_bytes=2000)) as client:
            found = await client.post(COMPLETIONS, content=b"{", headers={"content-type": "application/json"})
            assert found.status_code == 400 and "JSON" in found.json()["error"]["message"]
            for content in (b"x" * 3000, pieces()):
                found = await client.post(COMPLETIONS, content=content)
                assert found.status_code == 413 and "larger than 2000 bytes" in found.json()["error"]["message"]

    running(check())


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/version", "/tokenize", "/openapi.json"])
def test_a_key_covers_every_route(path):
    async def check():
        async with serving(api_key="secret") as client:
            for headers in ({}, {"authorization": "Bearer secre"}, {"authorization": "secret"}):
                found = await client.get(path, headers=headers)
                assert found.status_code == 401 and found.json()["error"]["type"] == "authentication_error"
            assert (await client.get(path, headers={"authorization": "Bearer secret"})).status_code != 401

    running(check())


def test_a_full_queue_is_answered_with_429():
    async def check():
        async with serving(max_waiting=2, batch_size=1) as client:
            body = {"prompt": PROMPT, "max_tokens": 200, "ignore_eos": True}
            found = await asyncio.gather(*(client.post(COMPLETIONS, json=body) for _ in range(8)))
            codes = [one.status_code for one in found]
            assert set(codes) == {200, 429} and codes.count(429) >= 4
            refused = next(one for one in found if one.status_code == 429)
            assert refused.headers["retry-after"] == "1" and "at most 2 may" in refused.json()["error"]["message"]

    running(check())


def test_a_request_that_takes_too_long_ends():
    async def check():
        async with serving(limits=Limits(seconds=0.05)) as client:
            body = {"prompt": PROMPT, "max_tokens": 480, "ignore_eos": True}
            found = await client.post(COMPLETIONS, json=body)
            assert found.status_code == 408 and "took longer than its 0.05 s" in found.json()["error"]["message"]

    running(check())
