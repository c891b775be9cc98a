"""/v1/responses: the chat's own answer in items, a stream that builds them, and what is refused."""

import json

import pytest

from paceline.serve.errors import ApiError
from paceline.serve.message_parts import CallPart, Parts
from paceline.serve.offline import read_body
from paceline.serve.response_body import LOGPROBS, ResponsesBody, messages_of
from paceline.serve.response_items import Items
from paceline.serve.settings import Limits, Settings
from tests.serve.chatting import SCHEMA, check_call, serving, token
from tests.serve.served import running
from tests.serve.served import serving as plain_serving

PATH = "/v1/responses"
ASKED = {"input": "x = 1", "max_output_tokens": 60, "temperature": 1.0, "seed": 3}
TOOLS = [
    {"type": "function", "name": "weather", "description": "of a city", "parameters": SCHEMA, "strict": True},
    {"type": "function", "name": "now"},
]


async def answered(client, body):
    response = await client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def streamed(client, body):
    """The events, whose names and numbers are checked."""
    found = []
    async with client.stream("POST", PATH, json={**body, "stream": True}) as response:
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
        name = None
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line:
                event = json.loads(line.removeprefix("data: "))
                assert event["type"] == name and event["sequence_number"] == len(found)
                found.append(event)
    assert [event["type"] for event in found[:2]] == ["response.created", "response.in_progress"]
    return found


def without_ids(items):
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in items]


def check_items(events):
    """Raise unless deltas, what is done, and the last event say the same of every item."""
    output = events[-1]["response"]["output"]
    for number, item in enumerate(output):
        own = [event for event in events if event.get("output_index") == number]
        assert own[0]["type"] == "response.output_item.added" and own[-1]["type"] == "response.output_item.done"
        assert own[-1]["item"] == item and own[0]["item"]["status"] == "in_progress"
        assert all(event["item_id"] == item["id"] for event in own[1:-1])
        text = "".join(event.get("delta", "") for event in own)
        done = next(event for event in own if event["type"].endswith((".text.done", "_text.done", "arguments.done")))
        if item["type"] == "function_call":
            assert text == item["arguments"] == done["arguments"]
            continue
        (part,) = item["content"]
        assert text == part["text"] == done["text"]
        kinds = [event["type"] for event in own if "content_part" in event["type"]]
        assert kinds == ["response.content_part.added", "response.content_part.done"]
        assert part in [event.get("part") for event in own]


def test_a_text_is_the_chats_and_a_stream_builds_it():
    async def check():
        async with serving() as (client, theirs):
            chat = {"messages": [{"role": "system", "content": "be short"}, {"role": "user", "content": "x = 1"}]}
            options = {"temperature": 1.0, "seed": 3}
            chat = await client.post("/v1/chat/completions", json={**chat, **options, "max_completion_tokens": 60})
            (choice,), usage = chat.json()["choices"], chat.json()["usage"]
            body = {
                **ASKED,
                "instructions": "be short",
                "reasoning": {"summary": "auto"},
                "text": {"verbosity": "medium"},
            }
            found = await answered(client, body)
            (item,) = found["output"]
            assert item["content"][0]["text"] == choice["message"]["content"] != ""
            assert found["usage"]["input_tokens"] == usage["prompt_tokens"]
            assert found["usage"]["output_tokens"] == usage["completion_tokens"] == 60
            assert (found["status"], item["status"]) == ("incomplete", "incomplete")
            assert (
                found["incomplete_details"] == {"reason": "max_output_tokens"} and choice["finish_reason"] == "length"
            )
            assert (found["temperature"], found["instructions"], found["store"]) == (1.0, "be short", False)
            events = await streamed(client, body)
            check_items(events)
            assert events[-1]["type"] == "response.incomplete"
            assert without_ids(events[-1]["response"]["output"]) == without_ids(found["output"])
            assert events[-1]["response"]["usage"] == found["usage"]
            assert len([event for event in events if event["type"] == "response.output_text.delta"]) > 3
            read = await theirs.responses.create(
                model="tiny",
                extra_body={"seed": 3, "temperature": 1.0},
                **{name: value for name, value in body.items() if name not in ("seed", "temperature")},
            )
            assert read.output_text == item["content"][0]["text"]
            stopped = await answered(client, {**body, "stop": item["content"][0]["text"][5:8]})
            assert stopped["status"] == stopped["output"][0]["status"] == "completed"
            assert stopped["incomplete_details"] is None

    running(check())


def test_openais_client_reads_the_stream():
    async def check():
        async with serving() as (client, theirs):
            async with theirs.responses.stream(model="tiny", input="x = 1", extra_body={"seed": 3}) as stream:
                seen = [event.type async for event in stream]
                final = await stream.get_final_response()
            assert seen[0] == "response.created" and "response.output_text.delta" in seen
            assert (
                final.output_text
                == (await answered(client, {"input": "x = 1", "seed": 3}))["output"][0]["content"][0]["text"]
            )

    running(check())


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_calls_are_items_and_their_outputs_are_read(choice):
    async def check():
        async with serving() as (client, _):
            body = {**ASKED, "max_output_tokens": 200, "tools": TOOLS, "tool_choice": choice}
            body["parallel_tool_calls"] = False
            found = await answered(client, body)
            events = await streamed(client, body)
            check_items(events)
            assert found["status"] == "completed" and events[-1]["type"] == "response.completed"
            assert without_ids(events[-1]["response"]["output"]) == without_ids(found["output"])
            assert found["tools"] == TOOLS and found["tool_choice"] == choice
            for item in found["output"]:
                assert item["type"] == "function_call" and item["status"] == "completed"
                assert item["call_id"] != item["id"]
                check_call(item["name"], item["arguments"])
            results = [
                {"type": "function_call_output", "call_id": item["call_id"], "output": "rain"}
                for item in found["output"]
            ]
            again = [{"role": "user", "content": "x = 1"}, *found["output"], *results]
            assert (await answered(client, {**ASKED, "input": again}))["output"][0]["type"] == "message"

    running(check())


def test_reasoning_is_an_item_of_its_own():
    async def check():
        async with serving(reasoning_parser="deepseek_r1") as (client, _):
            # The model would not close the tag by itself soon, so a bias does.
            body = {**ASKED, "max_output_tokens": 30, "logit_bias": {str(token("</think>")): 3}}
            found, events = await answered(client, body), await streamed(client, body)
            check_items(events)
            kinds = [item["type"] for item in found["output"]]
            assert kinds == ["reasoning", "message"] and without_ids(found["output"]) == without_ids(
                events[-1]["response"]["output"]
            )
            assert 0 < found["usage"]["output_tokens_details"]["reasoning_tokens"] <= 30

    running(check())


def test_a_schema_binds_the_text_and_logprobs_are_of_its_tokens():
    async def check():
        async with plain_serving() as client:
            text = {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True}}
            found = await answered(client, {**ASKED, "max_output_tokens": 200, "text": text})
            assert set(json.loads(found["output"][0]["content"][0]["text"])) >= {"city", "days"}
            assert found["text"] == text
            body = {**ASKED, "max_output_tokens": 8, "include": [LOGPROBS], "top_logprobs": 2}
            (part,) = (await answered(client, body))["output"][0]["content"]
            assert len(part["logprobs"]) == 8 and all(len(one["top_logprobs"]) == 2 for one in part["logprobs"])
            assert "".join(one["token"] for one in part["logprobs"]) == part["text"]
            events = await streamed(client, body)
            check_items(events)
            assert events[-1]["response"]["output"][0]["content"][0] == part
            deltas = [one for event in events for one in event.get("logprobs", ()) if event["type"].endswith("delta")]
            assert deltas == part["logprobs"]

    running(check())


def test_a_failure_in_a_stream_is_its_last_event():
    async def check():
        async with plain_serving(limits=Limits(seconds=0.05)) as client:
            events = await streamed(client, {"input": "x", "max_output_tokens": 400, "ignore_eos": True})
            assert events[-1]["type"] == "response.failed" and events[-1]["response"]["status"] == "failed"
            assert "took longer than its 0.05 s" in events[-1]["response"]["error"]["message"]

    running(check())


def test_calls_after_one_another_are_items_of_their_own():
    items, read = Items(), (CallPart(index=0, id="a", name="f"), CallPart(index=0, arguments="{}"))
    events = [event for call in read for event in items.push(Parts(calls=(call,)))]
    more = CallPart(index=1, id="b", name="g", arguments="[1]")
    events += [*items.push(Parts(content="x", calls=(more,))), *items.finish("completed")]
    assert without_ids(items.output)[::2] == [
        {"type": "function_call", "status": "completed", "name": name, "arguments": arguments}
        for name, arguments in (("f", "{}"), ("g", "[1]"))
    ]
    assert items.output[1]["content"][0]["text"] == "x"
    assert [event["output_index"] for event in events] == sorted(event["output_index"] for event in events)


def test_items_that_are_neighbours_become_one_message():
    call = {"type": "function_call", "call_id": "1", "name": "now", "arguments": "{}"}
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "message", "role": "user", "content": "c"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "d"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "e"}]},
        call,
        {**call, "call_id": "2"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "f"}]},
        {"type": "message", "role": "assistant", "content": "g"},
        {"type": "message", "role": "assistant", "content": "h"},
    ]
    found = messages_of(ResponsesBody(input=items, instructions="z"))
    calls = [
        {"id": number, "type": "function", "function": {"name": "now", "arguments": "{}"}} for number in ("1", "2")
    ]
    assert found == [
        {"role": "system", "content": "z"},
        {"role": "system", "content": "ab"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "reasoning_content": "d", "content": "e", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "f"},
        {"role": "assistant", "content": "g"},
        {"role": "assistant", "content": "h"},
    ]


CALL = {"type": "function_call", "call_id": "1", "name": "now"}
REFUSED = [  # body, field, words
    ({"input": []}, "input", "input"),
    ({"input": 3}, "input", "input"),
    ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id", "nothing is kept of a response"),
    ({"input": "x", "conversation": "c"}, "conversation", "nothing is kept"),
    ({"input": "x", "store": True}, "store", "store=True: nothing is kept"),
    ({"input": "x", "background": True}, "background", "background=True: nothing is kept"),
    ({"input": "x", "truncation": "auto"}, "truncation", "no messages are left out"),
    ({"input": "x", "prompt": {"id": "p"}}, "prompt", "no templates of prompts"),
    ({"input": "x", "max_tokens": 3}, "max_tokens", "give max_output_tokens"),
    ({"input": "x", "max_output_tokens": 0}, "max_output_tokens", "greater than or equal to 1"),
    ({"input": "x", "max_output_tokens": 10**6}, None, "max_output_tokens=1000000 exceed the limit of 512"),
    ({"input": "x", "n": 2}, "n", "no such option"),
    ({"input": "x", "messages": []}, "messages", "no such option"),
    ({"input": "x", "logprobs": True}, "logprobs", "no such option"),
    ({"input": "x", "top_logprobs": 2}, "top_logprobs", f'needs include: ["{LOGPROBS}"]'),
    ({"input": "x", "include": ["file_search_call.results"]}, "include.0", "include.0"),
    ({"input": "x", "text": {"verbosity": "low"}}, "text.verbosity", "text.verbosity"),
    ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format.schema", "give schema"),
    ({"input": "x", "reasoning": {"summary": "detailed"}}, "reasoning.summary", "reasoning.summary"),
    ({"input": "x", "reasoning": {"effort": "low"}}, "reasoning.effort", "the chat template has no"),
    ({"input": "x", "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation", "not True"),
    ({"input": "x", "temperature": -1}, "temperature", "temperature=-1"),
    ({"input": "x", "model": "gpt-x"}, "model", "does not exist"),
    ({"input": "x", "tools": [{"type": "web_search"}]}, "tools", "tools.0.type='web_search': only tools of type \"fun"),
    ({"input": "x", "tools": [{"type": "function"}]}, "tools", "tools.0.name=None"),
    (
        {"input": "x", "tools": TOOLS, "tool_choice": {"type": "mcp"}},
        "tool_choice",
        '{"type": "function", "name": NAME}',
    ),
    ({"input": "x", "tools": TOOLS, "include": [LOGPROBS]}, "include", "answers of text alone"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type", "only message, reasoning"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content", "only texts are read"),
    ({"input": [{"role": "user", "content": 7}]}, "input.0.content", "give a text, or a list of parts"),
    ({"input": [{"content": "x"}]}, "input.0.role", "input.0.role=None: give a text"),
    ({"input": [CALL]}, "input.0.arguments", "input.0.arguments=None: give a text"),
    ({"input": [{**CALL, "arguments": "{"}]}, "input", "input: no JSON"),
    ({"input": "x" * 10**5}, "input", "too many for a context"),
]


@pytest.mark.parametrize("streams", [False, True])
def test_every_refusal_names_the_field_of_this_route(streams):
    async def check():
        async with serving() as (client, _):
            for body, field, said in REFUSED:
                response = await client.post(PATH, json={**body, "stream": streams})
                error = response.json()["error"]
                case = f"{str(body)[:80]}: {error}"
                assert response.status_code == (404 if field == "model" else 400), case
                assert error["param"] == field and said in error["message"], case

    running(check())


def test_batches_answer_responses_too():
    settings = Settings(names=("tiny",))
    assert read_body(PATH, ASKED, settings).input == "x = 1"
    for body, field in (({"input": "x", "store": True}, "store"), ({"input": "x", "stream": True}, "stream")):
        with pytest.raises(ApiError) as refused:
            read_body(PATH, body, settings)
        assert refused.value.param == field
