"""Clients of a server over HTTP, many at once: what they ask for, when they leave, and what they were answered."""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx

PROMPTS = ("def quicksort(items):\n", "import os\n\nclass Reader:\n", "for line in open(", "# The first", "return ")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
SECONDS = 300.0  # for an answer, after which a client gives up: which is a fault
LEAVING = 0.15  # of the requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request: ``options`` are those of SamplingParams, ``extra`` the fields that only a server has."""

    number: int
    prompt: str
    options: dict[str, Any]
    extra: dict[str, Any]
    leaves_after: int | None  # events or, of what is not streamed, tenths of a second


@dataclass(slots=True, kw_only=True)
class Answered:
    """What a client was told; ``texts`` is None where it left."""

    asked: Asked
    texts: list[str] | None = None
    num_tokens: int = 0
    error: str | None = None
    first: float | None = None  # seconds to the first token
    per_token: float | None = None  # seconds, of those after it
    gaps: list[float] = field(default_factory=list)  # seconds between two events


def ask_for(number: int) -> Asked:
    """Request ``number``, the same in every run."""
    draw = random.Random(number)
    options: dict[str, Any] = {
        "temperature": draw.choice((0.0, 0.7, 1.0)),
        "seed": draw.randrange(2**31),
        "max_tokens": draw.choice((4, 16, 48, 96)),
    }
    if draw.random() < 0.2:
        options["n"] = 2
    if draw.random() < 0.2:
        options["stop"] = draw.choice(("\n\n", "return", ")"))
    if draw.random() < 0.2:
        options["logprobs"] = draw.choice((0, 3))
    if draw.random() < 0.3:
        options |= {"top_p": 0.9, "top_k": 40}
    if draw.random() < 0.2:
        options |= {"repetition_penalty": 1.2, "presence_penalty": 0.5}
    if draw.random() < 0.15:
        options["structured_outputs"] = draw.choice(({"json": SCHEMA}, {"regex": "[a-z ]{4,40}"}))
    extra: dict[str, Any] = {"stream": draw.random() < 0.6}
    if draw.random() < 0.2:
        extra["speculative_config"] = draw.choice(({"method": "none"}, {"num_speculative_tokens": 1}))
    leaves = draw.randrange(1, 6) if draw.random() < LEAVING else None
    return Asked(number=number, prompt=draw.choice(PROMPTS), options=options, extra=extra, leaves_after=leaves)


async def answer_to(client: httpx.AsyncClient, asked: Asked) -> Answered:
    """Send a request and read what comes, or leave."""
    found = Answered(asked=asked)
    body = {"prompt": asked.prompt, **asked.options, **asked.extra}
    try:
        if asked.extra.get("stream"):
            await _stream(client, {**body, "stream_options": {"include_usage": True}}, found)
        else:
            await _whole(client, body, found)
    except (httpx.HTTPError, ValueError, KeyError) as error:
        found.error = f"{type(error).__name__}: {error}"
    return found


async def _whole(client: httpx.AsyncClient, body: dict[str, Any], found: Answered) -> None:
    leaves = found.asked.leaves_after
    try:
        async with asyncio.timeout(None if leaves is None else leaves / 10):
            response = await client.post("/v1/completions", json=body)
    except TimeoutError:
        return
    answer = response.json()
    if response.status_code != 200:
        found.error = f"{response.status_code}: {answer}"
        return
    found.texts = [choice["text"] for choice in answer["choices"]]
    found.num_tokens = answer["usage"]["completion_tokens"]


async def _stream(client: httpx.AsyncClient, body: dict[str, Any], found: Answered) -> None:
    texts, times, begin = [""] * body.get("n", 1), list[float](), time.monotonic()
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            found.error = f"{response.status_code}: {(await response.aread()).decode()}"
            return
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                found.texts = texts
                break
            if not line:
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                found.error = str(event["error"])
                return
            for choice in event["choices"]:
                times.append(time.monotonic())
                texts[choice["index"]] += choice["text"]
            if event.get("usage"):
                found.num_tokens = event["usage"]["completion_tokens"]
            if found.asked.leaves_after is not None and len(times) >= found.asked.leaves_after:
                return
    if times:
        found.first = times[0] - begin
        found.gaps = [after - before for before, after in pairwise(times)]
        if found.num_tokens > 1 and len(texts) == 1:
            found.per_token = (times[-1] - times[0]) / (found.num_tokens - 1)


async def besiege(url: str, *, num_clients: int, seconds: float) -> list[Answered]:
    """So many clients, each with one request after another, until ``seconds`` have passed."""
    numbers, answered = iter(range(1 << 40)), list[Answered]()
    end = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=num_clients * 2)
    async with httpx.AsyncClient(base_url=url, timeout=SECONDS, limits=limits) as client:

        async def stay() -> None:
            while time.monotonic() < end:
                answered.append(await answer_to(client, ask_for(next(numbers))))

        await asyncio.gather(*(stay() for _ in range(num_clients)))
    return answered


async def stream_all(url: str, prompts: Sequence[str], body: dict[str, Any]) -> int:
    """Stream a completion of each prompt, all at once; the number of tokens."""
    async with httpx.AsyncClient(base_url=url, timeout=SECONDS) as client:

        async def one(prompt: str) -> int:
            asked = Asked(number=0, prompt=prompt, options=body, extra={"stream": True}, leaves_after=None)
            found = await answer_to(client, asked)
            if found.error is not None:
                raise RuntimeError(f"the server answered {found.error}")
            return found.num_tokens

        return sum(await asyncio.gather(*map(one, prompts)))
