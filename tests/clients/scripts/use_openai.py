"""openai's own library: completions, chats, streams, errors. Run in a venv of its own with a base URL and a model."""

import sys

import openai

url, model = sys.argv[1:]
client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
assert [one.id for one in client.models.list()] == [model]
assert client.models.retrieve(model).id == model
asked = dict(model=model, prompt="def add(first, second):\n", max_tokens=24, temperature=0.8, seed=7)
whole = client.completions.create(**asked, logprobs=2)
assert whole.choices[0].finish_reason in ("stop", "length") and whole.usage.completion_tokens <= 24
assert len(whole.choices[0].logprobs.tokens) == whole.usage.completion_tokens
stream = client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
pieces, usage = [], None
for chunk in stream:
    pieces += [choice.text for choice in chunk.choices]
    usage = chunk.usage or usage
assert "".join(pieces) == whole.choices[0].text and usage == whole.usage
several = client.completions.create(**asked, n=3, stop=["\n\n"])
assert [one.index for one in several.choices] == [0, 1, 2]
messages = [{"role": "user", "content": "Write a function that adds two numbers."}]
talk = dict(model=model, messages=messages, max_completion_tokens=16, temperature=0)
chat = client.chat.completions.create(**talk, logprobs=True, top_logprobs=2)
assert len(chat.choices[0].logprobs.content) == chat.usage.completion_tokens
streamed = client.chat.completions.create(**talk, stream=True)
text = "".join(one.choices[0].delta.content or "" for one in streamed if one.choices)
assert text == chat.choices[0].message.content
schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
client.chat.completions.create(**{**talk, "max_completion_tokens": 40}, response_format=form)
plain = client.completions.create(**asked, extra_body={"speculative_config": {"method": "none"}, "top_k": 20})
assert plain.usage.completion_tokens
for wrong, kind in (
    (dict(temperature=-1), openai.BadRequestError),
    (dict(model="gpt"), openai.NotFoundError),
    (dict(max_tokens=10**6), openai.BadRequestError),
):
    try:
        client.completions.create(**{**asked, **wrong})
        raise SystemExit(f"{wrong} was not refused")
    except kind as error:
        assert error.body["message"] and error.body["code"] == error.status_code
answer = dict(model=model, input="Write a function.", max_output_tokens=16, temperature=0)
response = client.responses.create(**answer)
assert response.output_text and response.usage.output_tokens <= 16
with client.responses.stream(**answer) as stream:
    seen = [event.type for event in stream]
    assert stream.get_final_response().output_text == response.output_text
assert seen[0] == "response.created" and seen[-1] in ("response.completed", "response.incomplete")
with client.completions.create(**{**asked, "max_tokens": 200}, stream=True) as leaving:
    next(iter(leaving))
print("models, completions (logprobs, n, stop, seed), streams with usage, chats, schemas, responses, no drafts, errors")
