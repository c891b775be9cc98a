"""Calls of tools: forced ones match their schema, drafted as plain; streams are the whole; what is refused."""

import pytest

from paceline.cli.serve_options import REASONING_PARSERS, TOOL_CALL_PARSERS
from paceline.serve.reasoning import REASONING_FORMATS
from paceline.serve.settings import Limits, Settings
from paceline.serve.tool_formats import TOOL_FORMATS
from tests.serve.chatting import CHAT, SCHEMA, TOOLS, check_call, gathered, serving, target, token, whole
from tests.serve.served import events, running

PATH = "/v1/chat/completions"
HINTS = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "llama3_json": '"parameters": ', "json": "x"}
NAMED = {"type": "function", "function": {"name": "weather"}}
MARKS = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]"}


async def asked(client, body):
    response = await client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("parser", list(HINTS))
def test_forced_calls_match_their_schema_drafted_and_plain(parser):
    async def check():
        found = {}
        for drafted in (True, False):
            async with serving(hint=HINTS[parser], drafted=drafted, tool_call_parser=parser) as (client, _):
                for choice in ("required", NAMED):
                    for seed in range(2):
                        body = {
                            **CHAT,
                            "tools": TOOLS,
                            "tool_choice": choice,
                            "parallel_tool_calls": False,
                            "seed": seed,
                        }
                        (one,) = whole(await asked(client, body))
                        assert one["reason"] == "tool_calls" and one["content"] == "" and len(one["calls"]) == 1, one
                        check_call(*one["calls"][0])
                        assert choice == "required" or one["calls"][0][0] == "weather"
                        found.setdefault((str(choice), seed), []).append(one)
        assert all(drafted == plain for drafted, plain in found.values())
        assert len({str(one) for one, _ in found.values()}) > 1

    running(check())


@pytest.mark.parametrize("parser", list(MARKS))
def test_a_call_that_the_model_decides_on_is_valid(parser):
    async def check():
        async with serving(hint=MARKS[parser]) as (client, _):
            body = {**CHAT, "tools": TOOLS, "n": 3, "parallel_tool_calls": False}
            called = {**body, "logit_bias": {str(token(MARKS[parser])): 100}}
            for one in whole(await asked(client, called)):
                assert one["reason"] == "tool_calls" and one["content"] == ""
                check_call(*one["calls"][0])
            assert gathered(await events(client, PATH, called)) == whole(await asked(client, called))
            # Left alone, this model writes text, and the grammar changes nothing of it.
            ascii_tokens = [token(chr(code)) for code in range(97, 123)]  # UTF-8, which this model does not keep to
            plain = {**CHAT, "n": 3, "max_tokens": 12, "allowed_token_ids": ascii_tokens}
            without = {**plain, "tools": TOOLS, "tool_choice": "none"}
            assert whole(await asked(client, {**without, "tool_choice": "auto"})) == whole(await asked(client, without))

    running(check())


def test_text_may_stand_before_a_call():
    async def check():
        async with serving() as (client, _):
            body = {
                **CHAT,
                "tools": TOOLS,
                "parallel_tool_calls": False,
                "logit_bias": {str(token("<tool_call>")): 4.5},
            }
            mixed = 0
            for seed in range(4):
                (one,) = whole(await asked(client, {**body, "seed": seed}))
                assert one["reason"] in ("tool_calls", "stop", "length")
                mixed += bool(one["content"] and one["calls"])
                if one["calls"] and one["reason"] == "tool_calls":
                    check_call(*one["calls"][0])
                assert gathered(await events(client, PATH, {**body, "seed": seed})) == [one]
            assert mixed

    running(check())


def test_streams_are_read_by_openais_client():
    async def check():
        async with serving() as (_, client):
            body = {**CHAT, "model": "tiny", "tools": TOOLS, "tool_choice": NAMED, "parallel_tool_calls": False}
            body["max_tokens"] = 300
            answer = await client.chat.completions.create(**body)
            calls = [(call.function.name, call.function.arguments) for call in answer.choices[0].message.tool_calls]
            async with client.chat.completions.stream(**body) as stream:
                final = await stream.get_final_completion()
            assert [(one.function.name, one.function.arguments) for one in final.choices[0].message.tool_calls] == calls
            assert final.choices[0].finish_reason == answer.choices[0].finish_reason

    running(check())


def test_several_calls_where_they_are_allowed():
    async def check():
        async with serving() as (client, _):
            body = {**CHAT, "tools": TOOLS[1:], "tool_choice": "required"}
            counts = {}
            for seed in range(3):
                for parallel in (True, False):
                    (one,) = whole(await asked(client, {**body, "seed": seed, "parallel_tool_calls": parallel}))
                    counts.setdefault(parallel, []).append(len(one["calls"]))
            assert set(counts[False]) == {1} and max(counts[True]) > 1

    running(check())


def test_results_of_tools_reach_the_template():
    async def check():
        async with serving() as (client, _):
            call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": '{"a": 1}'}}
            messages = [
                *CHAT["messages"],
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
            ]
            body = {**CHAT, "messages": messages, "tools": TOOLS, "max_tokens": 1, "return_token_ids": True}
            answer = await asked(client, body)
            prompt = target().tokenizer.decode(answer["prompt_token_ids"], skip_special=False)
            assert prompt.startswith("<tools>weather now ") and '<assistant>CALL now {"a": 1}<tool>noon' in prompt

    running(check())


def tool(parameters, name="f"):
    return [{"type": "function", "function": {"name": name, "parameters": parameters}}]


def deep(levels):
    schema = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def pattern(regex):
    return tool({"type": "object", "properties": {"a": {"type": "string", "pattern": regex}}, "required": ["a"]})


REFUSED = [  # body, field, what is said
    ({"tool_choice": "required"}, "tool_choice", "without tools"),
    (
        {"tools": TOOLS, "tool_choice": "always"},
        "tool_choice",
        "tool_choice='always': give one of none, auto, required",
    ),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice",
        "no tool is named 'g'",
    ),
    ({"tools": TOOLS * 2}, "tools", "tools.2: a second function 'weather'"),
    ({"tools": tool(SCHEMA, 'a"b')}, "tools", "tools.0.function.name='a\"b': give up to 64"),
    ({"tools": tool({"type": "array"})}, "tools", "tools.0.function.parameters: give a JSON schema"),
    ({"tools": tool({"type": "object", "properties": {"a": {"type": "banana"}}})}, "tools", "banana"),
    ({"tools": tool({"type": "object", "properties": {"a": {"$ref": "http://x.y/z"}}})}, "tools", "not present"),
    ({"tools": tool(deep(20))}, "tools", "nested deeper than 32 levels"),
    ({"tools": tool(deep(100))}, "tools", "nested deeper than 32 levels"),
    ({"tools": pattern("(?=a)b")}, "tools", "look-around"),
    ({"tools": pattern("[")}, "tools", "regex"),
    ({"tools": [tool({}, f"f{index}")[0] for index in range(129)]}, "tools", "129 tools, at most 128"),
    ({"tools": tool({"type": "object", "description": "x" * 70_000})}, "tools", "at most 65536 are taken"),
    ({"tools": TOOLS, "structured_outputs": {"regex": "a"}}, "structured_outputs", "the answer may be a call"),
    ({"functions": [{"name": "f"}]}, "functions", "give tools"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
        "messages.0.tool_calls",
        "no JSON",
    ),
    ({"messages": [{"role": "assistant", "tool_calls": [1]}]}, "messages.0.tool_calls", "give a function with a name"),
]


def test_what_is_refused_of_tools():
    async def check():
        async with serving() as (client, _):
            for body, field, said in REFUSED:
                response = await client.post(PATH, json={**CHAT, **body})
                error = response.json()["error"]
                assert response.status_code == 400 and error["param"] == field and said in error["message"], (
                    str(body)[:99],
                    error,
                )
                assert len(error["message"]) < 1500

    running(check())


@pytest.mark.parametrize(
    "regex", ["(a{1,1000}){1,1000}", "^(([a-z])+.)+[A-Z]([a-z])+$", "(.*a.{20}){5}", "(a?){500}a{500}"]
)
def test_expressions_that_explode_elsewhere_cost_nothing(regex):
    async def check():
        async with serving() as (client, _):
            response = await client.post(PATH, json={**CHAT, "tools": pattern(regex), "tool_choice": "required"})
            assert response.status_code in (200, 400)

    running(check())


def test_the_format_is_chosen_by_name_or_by_the_template():
    async def check():
        for hint, settings, said in (
            ("x", {}, "--tool-call-parser, one of hermes, mistral, llama3_json, json"),
            ("<tool_call> [TOOL_CALLS]", {}, "--tool-call-parser"),
            ("<tool_call>", {"enable_auto_tool_choice": False}, "switched off at this server"),
        ):
            async with serving(hint=hint, **settings) as (client, _):
                response = await client.post(PATH, json={**CHAT, "tools": TOOLS})
                assert response.status_code == 400 and said in response.json()["error"]["message"]
        async with serving(limits=Limits(tools=1)) as (client, _):
            response = await client.post(PATH, json={**CHAT, "tools": TOOLS})
            assert "2 tools, at most 1" in response.json()["error"]["message"]

    running(check())
    assert (TOOL_CALL_PARSERS, REASONING_PARSERS) == (tuple(TOOL_FORMATS), tuple(REASONING_FORMATS))
    with pytest.raises(ValueError, match="tool_call_parser='x': give one of hermes"):
        Settings(names=("a",), tool_call_parser="x")
    with pytest.raises(ValueError, match="reasoning_parser='x': give one of deepseek_r1"):
        Settings(names=("a",), reasoning_parser="x")
