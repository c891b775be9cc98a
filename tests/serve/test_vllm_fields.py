"""Fields that clients of vLLM send: scored prompts, token ids, cut prompts, echoes, nulls; and encoder-decoders."""

import pytest

from paceline.api import SamplingParams
from tests.serve.served import PROMPT, engine, events, running, serving, target

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
BODY = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0.0}
CHAT = {"messages": [{"role": "user", "content": "x = 1"}], "max_tokens": 5, "temperature": 0.0}


async def asked(client, path, body):
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def offline(tokens, **options):
    return engine().generate([tokens], SamplingParams(max_tokens=5, temperature=0.0, **options))[0]


def test_prompts_are_scored():
    async def check():
        async with serving() as client:
            (choice,) = (await asked(client, COMPLETIONS, {**BODY, "prompt_logprobs": 2}))["choices"]
            tokens = target().tokenizer.encode(PROMPT)
            score = offline(tokens, prompt_logprobs=2).prompt_logprobs
            found = choice["prompt_logprobs"]
            assert found[0] is None and len(found) == len(tokens)
            for token, value, top, entry in zip(tokens[1:], score.logprobs[1:], score.top[1:], found[1:], strict=True):
                assert entry[str(token)]["logprob"] == value
                assert entry[str(token)]["decoded_token"] == target().tokenizer.decode([token], skip_special=False)
                ranked = sorted((one["rank"], int(key)) for key, one in entry.items() if one["rank"] is not None)
                assert ranked == [(rank, one) for rank, (one, _) in enumerate(top, start=1)]
                assert set(map(int, entry)) == {token, *(one for one, _ in top)}
            answer = await asked(client, CHATS, {**CHAT, "prompt_logprobs": 0})
            assert answer["prompt_logprobs"][0] is None and len(answer["prompt_logprobs"]) > 3
            refused = await client.post(CHATS, json={**CHAT, "prompt_logprobs": 0, "stream": True})
            assert refused.json()["error"]["param"] == "prompt_logprobs"

    running(check())


def test_token_ids_are_given_where_asked_for():
    async def check():
        async with serving() as client:
            tokens = target().tokenizer.encode(PROMPT)
            wanted = list(offline(tokens).token_ids)
            body = {**BODY, "return_token_ids": True, "logprobs": 1, "return_tokens_as_token_ids": True}
            (choice,) = (await asked(client, COMPLETIONS, body))["choices"]
            assert (choice["prompt_token_ids"], choice["token_ids"]) == (tokens, wanted)
            assert choice["logprobs"]["tokens"] == [f"token_id:{one}" for one in wanted]
            found = [event["choices"][0] for event in await events(client, COMPLETIONS, body)]
            assert [one for piece in found for one in piece["token_ids"]] == wanted
            assert [piece.get("prompt_token_ids") for piece in found] == [tokens, *[None] * (len(found) - 1)]
            body = {**CHAT, "return_token_ids": True, "logprobs": True, "return_tokens_as_token_ids": True}
            answer = await asked(client, CHATS, body)
            chat = target().tokenizer.chat(CHAT["messages"])
            wanted = list(offline(chat).token_ids)
            assert answer["prompt_token_ids"] == chat and answer["choices"][0]["token_ids"] == wanted
            entries = answer["choices"][0]["logprobs"]["content"]
            assert [one["token"] for one in entries] == [f"token_id:{one}" for one in wanted]
            found = [event["choices"][0] for event in await events(client, CHATS, body)]
            assert found[0]["prompt_token_ids"] == chat
            assert [one for piece in found for one in piece.get("token_ids", ())] == wanted

    running(check())


@pytest.mark.parametrize("most", [1, 4, 1000, -1])
def test_prompts_are_cut_to_their_last_tokens(most):
    async def check():
        async with serving() as client:
            tokens = target().tokenizer.encode(PROMPT)
            body = {**BODY, "truncate_prompt_tokens": most, "return_token_ids": True}
            (choice,) = (await asked(client, COMPLETIONS, body))["choices"]
            kept = tokens if most == -1 else tokens[-most:]
            assert choice["prompt_token_ids"] == kept and choice["text"] == offline(kept).text
            if most == -1:
                body = {**body, "prompt": [tokens[:1] * 900]}
                assert len((await asked(client, COMPLETIONS, body))["choices"][0]["prompt_token_ids"]) == 512 - 5
                refused = await client.post(COMPLETIONS, json={**BODY, "truncate_prompt_tokens": 0})
                assert refused.json()["error"]["message"].startswith("truncate_prompt_tokens=0: give at least 1")

    running(check())


def test_a_chat_may_repeat_the_message_that_it_goes_on_with():
    async def check():
        async with serving() as client:
            messages = [*CHAT["messages"], {"role": "assistant", "content": "so"}]
            body = {**CHAT, "messages": messages, "continue_final_message": True, "add_generation_prompt": False}
            plain = (await asked(client, CHATS, body))["choices"][0]["message"]["content"]
            echoed = {**body, "echo": True}
            assert (await asked(client, CHATS, echoed))["choices"][0]["message"]["content"] == f"so{plain}"
            found = [event["choices"][0]["delta"]["content"] for event in await events(client, CHATS, echoed)]
            assert "".join(found) == f"so{plain}"

    running(check())


def test_null_is_as_if_left_out():
    async def check():
        async with serving() as client:
            nulls = dict.fromkeys(
                ("stop", "n", "stream", "logit_bias", "tools", "top_logprobs", "seed", "response_format")
            )
            wanted = (await asked(client, CHATS, CHAT))["choices"]
            assert (await asked(client, CHATS, {**CHAT, **nulls, "max_completion_tokens": None}))["choices"] == wanted
            refused = await client.post(CHATS, json={**CHAT, "add_special_tokens": True})
            assert refused.json()["error"]["param"] == "add_special_tokens"

    running(check())
