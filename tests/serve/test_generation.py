"""Completions and chats: the offline engine's tokens, whole and streamed, with log-probabilities, usage and limits."""

import asyncio

import pytest

from paceline.api import SamplingParams
from tests.serve.served import PROMPT, engine, events, running, serving, target

BODY = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0.8, "seed": 5}
CHAT = {"messages": [{"role": "user", "content": "x = 1"}], "max_tokens": 10, "temperature": 0.7, "seed": 2}


def offline(prompts, **options):
    return engine().generate(prompts, SamplingParams(**options))


def given(body):
    return {name: body[name] for name in ("max_tokens", "temperature", "seed")}


@pytest.mark.parametrize("streamed", [False, True])
def test_completions_are_those_of_the_engine(streamed):
    async def check():
        async with serving() as client:
            body = {**BODY, "prompt": [PROMPT, "for item"], "n": 2}
            wanted = offline([PROMPT, "for item"], n=2, **given(BODY))
            if streamed:
                texts, reasons = [""] * 4, [None] * 4
                for event in await events(client, "/v1/completions", body):
                    assert (
                        event["object"] == "text_completion" and event["model"] == "tiny" and event["id"][:5] == "cmpl-"
                    )
                    (choice,) = event["choices"]
                    texts[choice["index"]] += choice["text"]
                    reasons[choice["index"]] = choice["finish_reason"]
            else:
                answer = (await client.post("/v1/completions", json=body)).json()
                assert [one["index"] for one in answer["choices"]] == [0, 1, 2, 3]
                texts = [one["text"] for one in answer["choices"]]
                reasons = [one["finish_reason"] for one in answer["choices"]]
                prompts = sum(len(one.prompt_tokens) for one in wanted if one.sample == 0)
                outputs = sum(len(one.token_ids) for one in wanted)
                assert answer["usage"] == {
                    "prompt_tokens": prompts,
                    "completion_tokens": outputs,
                    "total_tokens": prompts + outputs,
                }
            assert texts == [one.text for one in wanted] and reasons == [one.finish_reason for one in wanted]

    running(check())


@pytest.mark.parametrize("streamed", [False, True])
def test_chats_are_those_of_the_engine(streamed):
    async def check():
        async with serving() as client:
            tokens = target().tokenizer.chat(CHAT["messages"])
            (wanted,) = offline([tokens], **given(CHAT))
            parts = [{"role": "user", "content": [{"type": "text", "text": "x ="}, {"type": "text", "text": " 1"}]}]
            if streamed:
                found = await events(
                    client, "/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}}
                )
                assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
                assert found[-1]["choices"] == [] and found[-1]["usage"]["completion_tokens"] == len(wanted.token_ids)
                middle = [event["choices"][0] for event in found[1:-1]]
                assert all("role" not in one["delta"] for one in middle)
                assert "".join(one["delta"]["content"] for one in middle) == wanted.text
                assert [one["finish_reason"] for one in middle[:-1]] == [None] * (len(middle) - 1)
                assert middle[-1]["finish_reason"] == wanted.finish_reason
                assert len(middle) < len(wanted.token_ids), "tokens of a step come in one event"
            else:
                for messages in (CHAT["messages"], parts):
                    answer = (await client.post("/v1/chat/completions", json={**CHAT, "messages": messages})).json()
                    (choice,) = answer["choices"]
                    assert choice["message"] == {"role": "assistant", "content": wanted.text}
                    assert answer["object"] == "chat.completion" and choice["finish_reason"] == wanted.finish_reason

    running(check())


def test_log_probabilities_have_both_shapes():
    async def check():
        async with serving() as client:
            tokenizer = target().tokenizer
            (wanted,) = offline([PROMPT], logprobs=2, **given(BODY))
            answer = (await client.post("/v1/completions", json={**BODY, "logprobs": 2})).json()
            found = answer["choices"][0]["logprobs"]
            assert found["token_logprobs"] == [one.raw for one in wanted.logprobs]
            assert found["tokens"] == [tokenizer.decode([one], skip_special=False) for one in wanted.token_ids]
            assert found["text_offset"] == [len("".join(found["tokens"][:at])) for at in range(len(found["tokens"]))]
            for top, text, own in zip(found["top_logprobs"], found["tokens"], found["token_logprobs"], strict=True):
                assert top[text] == own and 2 <= len(top) <= 3
            tokens = tokenizer.chat(CHAT["messages"])
            (wanted,) = offline([tokens], logprobs=3, **given(CHAT))
            body = {**CHAT, "logprobs": True, "top_logprobs": 3}
            content = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["logprobs"]["content"]
            streamed = [
                entry
                for event in await events(client, "/v1/chat/completions", body)
                if event["choices"][0].get("logprobs")
                for entry in event["choices"][0]["logprobs"]["content"]
            ]
            assert content == streamed and [one["logprob"] for one in content] == [one.raw for one in wanted.logprobs]
            for entry, own in zip(content, wanted.logprobs, strict=True):
                assert bytes(entry["bytes"]).decode() == entry["token"]
                assert [one["logprob"] for one in entry["top_logprobs"]] == [value for _, value in own.top_raw]

    running(check())


def test_a_prompt_is_scored_with_echo():
    """As lm-eval asks for the likelihood of a continuation: token ids, one token more, the best one exactly its own."""

    async def check():
        async with serving() as client:
            tokens = target().tokenizer.encode(PROMPT)
            body = {"prompt": [tokens], "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True, "seed": 1234}
            (choice,) = (await client.post("/v1/completions", json=body)).json()["choices"]
            (wanted,) = offline([tokens], max_tokens=1, temperature=0.0, logprobs=1, prompt_logprobs=1)
            found = choice["logprobs"]
            assert choice["text"] == PROMPT + wanted.text
            assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
            assert found["token_logprobs"][1:-1] == list(wanted.prompt_logprobs.logprobs[1:])
            assert len(found["tokens"]) == len(tokens) + 1
            for top, own in zip(found["top_logprobs"][1:], found["token_logprobs"][1:], strict=True):
                assert own <= max(top.values()) and own in top.values()
            assert max(found["top_logprobs"][-1].values()) == found["token_logprobs"][-1]

    running(check())


def test_formats_and_stops_are_honoured():
    async def check():
        async with serving() as client:
            schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
            asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            body = {**BODY, "max_tokens": 60, "response_format": asked}
            wanted = offline([PROMPT], structured_outputs={"json": schema}, **given(body))[0].text
            assert (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"] == wanted
            whole = (await client.post("/v1/completions", json=BODY)).json()["choices"][0]["text"]
            stop = whole[3:5]
            found = (await client.post("/v1/completions", json={**BODY, "stop": [stop], "stream": False})).json()
            assert found["choices"][0]["text"] == whole[: whole.index(stop)]
            assert found["choices"][0]["finish_reason"] == "stop" and found["choices"][0]["stop_reason"] == stop
            biased = {**BODY, "temperature": 0, "logit_bias": {"7": 100}, "max_tokens": 3, "user": "me", "stop": None}
            text = (await client.post("/v1/completions", json=biased)).json()["choices"][0]["text"]
            assert text == target().tokenizer.decode([7, 7, 7])

    running(check())


def test_metrics_of_a_request_add_up():
    async def check():
        async with serving(metrics=True) as client:
            found = (await client.post("/v1/completions", json=BODY)).json()["metrics"]["speculative_decoding"]
            histogram = found["acceptance_histogram"]
            assert len(histogram) == found["num_spec_tokens"] + 1 == 4 and sum(histogram) == found["num_spec_steps"]
            accepted = sum(depth * count for depth, count in enumerate(histogram))
            assert 0 < accepted == found["num_accepted_draft_tokens"] <= found["num_draft_tokens"]
            assert (await client.post("/v1/completions", json={**BODY, "n": 2})).json()["metrics"] is None
        async with serving() as client:
            assert "metrics" not in (await client.post("/v1/completions", json=BODY)).json()

    running(check())


def test_many_clients_at_once_get_what_each_would_get_alone():
    async def one(client, index):
        body = {**BODY, "seed": index, "max_tokens": 5 + index % 7}
        if index % 3 == 0:
            pieces = [event["choices"][0]["text"] for event in await events(client, "/v1/completions", body)]
            return "".join(pieces)
        return (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"]

    async def check():
        async with serving() as client:
            found = await asyncio.gather(*(one(client, index) for index in range(20)))
        alone = [
            offline([PROMPT], temperature=0.8, seed=index, max_tokens=5 + index % 7)[0].text for index in range(20)
        ]
        assert found == alone

    running(check())
