"""The other routes: health, version, models, tokens; and clients that leave."""

import asyncio

from paceline.serve import app as app_module
from tests.serve.served import PROMPT, running, serving, target


def test_models_version_and_health():
    async def check():
        async with serving() as client:
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/version")).json()["version"]
            found = (await client.get("/v1/models")).json()
            assert [one["id"] for one in found["data"]] == ["tiny", "alias"] and found["object"] == "list"
            assert found["data"][0]["max_model_len"] == 512
            assert (await client.get("/v1/models/alias")).json()["root"] == "tiny"
            assert (await client.get("/v1/models/other")).status_code == 404

    running(check())


def test_tokens_of_texts_and_chats_and_back():
    async def check():
        async with serving() as client:
            tokenizer = target().tokenizer
            found = (await client.post("/tokenize", json={"prompt": PROMPT, "return_token_strs": True})).json()
            assert found["tokens"] == tokenizer.encode(PROMPT) and found["count"] == len(found["tokens"])
            assert "".join(found["token_strs"]) == PROMPT
            back = await client.post("/detokenize", json={"tokens": found["tokens"]})
            assert back.json() == {"prompt": PROMPT}
            messages = [{"role": "user", "content": "x"}]
            found = (await client.post("/tokenize", json={"messages": messages})).json()
            assert found["tokens"] == tokenizer.chat(messages)

    running(check())


def test_a_client_that_leaves_a_stream_frees_its_row(monkeypatch):
    made = []
    own = app_module.AsyncEngine
    monkeypatch.setattr(app_module, "AsyncEngine", lambda *args, **more: made.append(own(*args, **more)) or made[-1])

    async def check():
        async with serving(batch_size=1) as client:
            body = {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "stream": True}
            task = asyncio.create_task(client.post("/v1/completions", json=body))
            while not made[0].num_running:
                await asyncio.sleep(0.005)
            task.cancel()
            found = await client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 3})
            assert found.status_code == 200
            assert made[0].num_running == made[0].num_waiting == 0

    running(check())
