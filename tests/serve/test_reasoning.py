"""Reasoning in answers: whole and streamed, bound by grammars after it, opened by the template or not."""

import json

import pytest

from tests.serve.chatting import CHAT, SCHEMA, TOOLS, USER, check_call, engine, gathered, serving, target, token, whole
from tests.serve.served import events, running

PATH = "/v1/chat/completions"
PLAIN = {**CHAT, "max_tokens": 24}


@pytest.mark.parametrize("opened", [True, False])
def test_reasoning_and_content_are_the_engines_text(opened):
    async def check():
        async with serving(reasoning_parser="qwen3") as (client, _):
            bias = {token("</think>"): 4.0} | ({} if opened else {token("<think>"): 5.0})
            kwargs = {"enable_thinking": opened}
            body = {**PLAIN, "n": 3, "logit_bias": {str(key): value for key, value in bias.items()}}
            body |= {"chat_template_kwargs": kwargs}
            tokens = target().tokenizer.chat(USER, variables=kwargs)
            wanted = engine().generate([tokens], n=3, max_tokens=24, temperature=1.0, seed=3, logit_bias=bias)
            found = whole((await client.post(PATH, json=body)).json())
            assert gathered(await events(client, PATH, body)) == found
            reasoned = 0
            for one, own in zip(found, wanted, strict=True):
                text = one["reasoning"]
                if text or one["content"] != own.text:
                    reasoned += 1
                    text = text if opened else f"<think>{text}"
                    text += "</think>" if "</think>" in own.text else ""
                assert text + one["content"] == own.text
            assert reasoned >= (3 if opened else 1)
            hidden = whole((await client.post(PATH, json={**body, "include_reasoning": False})).json())
            assert hidden == [{**one, "reasoning": ""} for one in found]

    running(check())


def test_json_and_calls_are_bound_after_reasoning():
    async def check():
        asked = {"json": SCHEMA, "disable_any_whitespace": True}  # which this model would write for ever
        for drafted in (True, False):
            async with serving(reasoning_parser="deepseek_r1", drafted=drafted) as (client, _):
                body = {**CHAT, "logit_bias": {str(token("</think>")): 5.0}}
                formatted = {**body, "structured_outputs": asked}
                (one,) = whole((await client.post(PATH, json=formatted)).json())
                assert one["reasoning"] and one["reason"] == "stop"
                check_call("weather", one["content"])
                forced = {**body, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
                (called,) = whole((await client.post(PATH, json=forced)).json())
                assert called["reasoning"] and called["reason"] == "tool_calls"
                check_call(*called["calls"][0])
                if drafted:
                    drawn = (one, called)
                    assert gathered(await events(client, PATH, forced)) == [called]
                else:
                    assert drawn == (one, called)
                refused = await client.post(PATH, json={**body, "structured_outputs": {"regex": "a"}})
                assert "begins with reasoning" in refused.json()["error"]["message"]

    running(check())


def test_fields_of_reasoning_have_both_names():
    async def check():
        async with serving(reasoning_parser="qwen3") as (client, _):
            body = {**PLAIN, "chat_template_kwargs": {"enable_thinking": True}}
            message = (await client.post(PATH, json=body)).json()["choices"][0]["message"]
            assert message["reasoning_content"] == message["reasoning"] != "" and message["content"] is None
        async with serving() as (client, _):
            message = (await client.post(PATH, json=body)).json()["choices"][0]["message"]
            assert set(message) == {"role", "content"}

    running(check())


REFUSED = [
    ({"tokenize": False}, "'tokenize' is the server's"),
    ({"chat_template": "x"}, "'chat_template' is the server's"),
    ({"messages": 1}, "'messages' is the server's"),
    ({"eos_token": "x"}, "no 'eos_token'"),
    ({"unknown": 1}, "the chat template has no 'unknown'"),
    ({"a b": 1}, "the chat template has no 'a b'"),
    ({"enable_thinking": {"a": 1}}, "give a finite number, true, false or a short text"),
    ({"enable_thinking": "x" * 300}, "give a finite number"),
    ({f"a{index}": 1 for index in range(17)}, "17 of them, at most 16"),
]


def test_options_of_the_template_are_plain_values_that_it_has():
    async def check():
        async with serving() as (client, _):
            for options, said in REFUSED:
                response = await client.post(PATH, json={**PLAIN, "chat_template_kwargs": options})
                error = response.json()["error"]
                assert response.status_code == 400 and error["param"] == "chat_template_kwargs", error
                assert said in error["message"], (options, error)
            response = await client.post(PATH, json={**PLAIN, "reasoning_effort": "low"})
            assert response.json()["error"]["param"] == "reasoning_effort"
            raw = json.dumps({**PLAIN, "chat_template_kwargs": {"enable_thinking": 1}}).replace(": 1}", ": NaN}")
            response = await client.post(PATH, content=raw, headers={"content-type": "application/json"})
            assert response.status_code == 400

    running(check())
