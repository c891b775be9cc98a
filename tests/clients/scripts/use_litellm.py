"""litellm over both routes, whole and streamed."""

import sys

import litellm

url, model = sys.argv[1:]
litellm.telemetry = False
to = dict(api_base=url, api_key="none", temperature=0, max_tokens=12, num_retries=0)
messages = [{"role": "user", "content": "Hello"}]
chat = litellm.completion(model=f"openai/{model}", messages=messages, **to)
streamed = litellm.completion(model=f"openai/{model}", messages=messages, stream=True, **to)
text = "".join(one.choices[0].delta.content or "" for one in streamed)
assert text == chat.choices[0].message.content and chat.usage.completion_tokens == 12
found = litellm.text_completion(model=f"text-completion-openai/{model}", prompt="def add(a, b):\n", seed=3, **to)
assert found.choices[0].text
try:
    litellm.completion(model="openai/gpt", messages=messages, **to)
    raise SystemExit("an unknown model was not refused")
except litellm.NotFoundError:
    pass
print("chats whole and streamed, completions, errors")
