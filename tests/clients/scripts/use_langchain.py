"""langchain-openai: chats and completions, whole, streamed, in batches, and a structured answer."""

import sys

from langchain_openai import ChatOpenAI, OpenAI

url, model = sys.argv[1:]
to = dict(model=model, base_url=url, api_key="none", temperature=0, max_retries=0)
chat = ChatOpenAI(**to, max_tokens=12)
answer = chat.invoke("Hello")
assert "".join(one.content for one in chat.stream("Hello")) == answer.content
assert answer.usage_metadata["output_tokens"] == 12
assert [one.content for one in chat.batch(["Hello", "Hello"])] == [answer.content] * 2
complete = OpenAI(**to, max_tokens=12)
text = complete.invoke("def add(a, b):\n")
assert "".join(complete.stream("def add(a, b):\n")) == text
schema = {"title": "x", "type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
schema["additionalProperties"] = False
drawn = {**to, "temperature": 1, "seed": 1}  # the likeliest answer of this model is white space until its limit
found = ChatOpenAI(**drawn, max_tokens=40).with_structured_output(schema, method="json_schema").invoke("Is it?")
assert isinstance(found["a"], bool)
newer = ChatOpenAI(**to, max_tokens=12, use_responses_api=True)  # of /v1/responses
assert newer.invoke("Hello").text == answer.content
assert "".join(one.text for one in newer.stream("Hello")) == answer.content
print("chats and completions, whole, streamed and in batches; a structured answer; responses")
