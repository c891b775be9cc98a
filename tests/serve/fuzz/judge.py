"""What may become of a request: no fault of the server, no refusal of what is valid, no answer to what is not, and no
answer that is not the offline engine's.
"""

import asyncio
import json
from collections import Counter
from functools import cache

from paceline.api import Engine, SamplingParams
from tests.fuzz import target
from tests.fuzz.cases import LENGTH

SECONDS = 60  # for one request, on a busy machine
HEADERS = {"content-type": "application/json"}
PATH = "/v1/completions"
BODY_BYTES = 64_000  # that the server takes


@cache
def plain():
    """The offline engine, without a drafter."""
    return Engine(target.loaded(eager=False), drafter="none", batch_size=4, max_length=LENGTH)


def offline(prompt, options):
    """What the plain engine makes of it: (text, reason) of every output."""
    results = plain().submit([prompt], [SamplingParams(**options)]).drain()
    return [(one.text, one.finish_reason) for one in results]


async def send(client, content, *, path=PATH, method="POST", headers=HEADERS):
    """The response, within SECONDS."""
    request = client.request(method, path, content=content, headers=headers)
    return await asyncio.wait_for(request, SECONDS)


async def judge(client, request, tally, *, same_tokens):
    """Raise AssertionError unless ``request`` is answered as it has to be."""
    content = json.dumps(request.body).encode()
    response = await send(client, content)
    tally.update([f"{response.status_code}", "requests"])
    case = f"{json.dumps(request.body)[:1500]}\n-> {response.status_code} {response.text[:600]}"
    if request.wrong:
        if response.status_code == 413 and len(content) > BODY_BYTES:
            return
        assert response.status_code in (400, 404), f"refused for {request.wrong!r}? {case}"
        error = response.json()["error"]
        said = f"{error['param']} {error['message']}"
        assert request.wrong in said or "surrogate" in said or request.wrong == "structured_outputs", case
        return
    assert response.status_code == 200, case
    if request.body.get("stream"):
        found = streamed(response.text, request.options.get("n", 1))
    else:
        found = [(one["text"], one["finish_reason"]) for one in response.json()["choices"]]
    assert len(found) == request.options.get("n", 1) and all(reason in ("stop", "length") for _, reason in found), case
    if same_tokens and (request.options["seed"] not in (None, -1) or request.options["temperature"] == 0):
        tally.update(["compared"])
        wanted = offline(request.prompt, request.options)
        assert found == wanted, f"offline {wanted}; {case}"


def streamed(text, count):
    """(text, reason) of every choice of a stream."""
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line]
    assert lines[-1] == "[DONE]", text
    texts, reasons = [""] * count, [None] * count
    for line in lines[:-1]:
        event = json.loads(line)
        assert "error" not in event, event
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
            reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
    return list(zip(texts, reasons, strict=True))


def judge_any(response, case):
    """Raise AssertionError where a response to anything at all is not in the form that all have."""
    assert response.status_code < 500, f"{case}\n-> {response.status_code} {response.text[:600]}"
    if response.status_code >= 400 and response.request.method != "HEAD":
        error = response.json()["error"]
        assert error["code"] == response.status_code and error["message"] and len(error["message"]) < 1300, case
        assert "/tmp" not in error["message"] and "<state>" not in error["message"], f"{case}\n-> {error}"


class Tally(Counter):
    """How often each thing happened."""
