"""Answers of ``/v1/responses``: a chat's, in the items and events of OpenAI's newer route. Nothing of them is kept."""

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, final

from paceline.api.async_streams import AsyncStream
from paceline.api.params import SamplingParams
from paceline.api.results import Piece, Result
from paceline.serve.chats import ChatAnswer
from paceline.serve.chunks import Chunks
from paceline.serve.errors import ApiError, api_error
from paceline.serve.generation import Server
from paceline.serve.replies import reason_of
from paceline.serve.response_body import LOGPROBS, ResponsesBody, chat_body
from paceline.serve.response_items import Items
from paceline.serve.sampling import chat_params
from paceline.serve.settings import Limits

STATUSES = {"stop": "completed", "tool_calls": "completed", "length": "incomplete", "abort": "cancelled"}
CHATS = (  # what chats call these fields
    (re.compile(r"messages\.\d+[\w.]*"), "input"),
    (re.compile(r"\bmax_completion_tokens\b|\bmax_tokens\b"), "max_output_tokens"),
    (re.compile(r"response_format(\.json_schema)?"), "text.format"),
    (re.compile(r"reasoning_effort"), "reasoning.effort"),
    (re.compile(r"(tools\.\d+)\.function"), r"\1"),
)


@final
class ResponseAnswer(ChatAnswer):
    """Of ``/v1/responses``."""

    prefix = "resp"

    def __init__(self, server: Server, body: ResponsesBody, client: str) -> None:
        super().__init__(server, chat_body(body), client)
        self.id, self.asked = self.id.replace("-", "_"), body

    async def submit(self) -> AsyncStream:
        with _own_names():
            return await super().submit()

    def bound(self, params: SamplingParams, prompts: Sequence[Any]) -> SamplingParams:
        found = super().bound(params, prompts)
        self.sampled = found
        if self.body.logprobs and (self.thought is not None or self.tools is not None):
            reason = f"include: {LOGPROBS} is for answers of text alone, without tools and reasoning: leave it out"
            raise ApiError(400, reason, param="include")
        return found

    def whole(self, results: Sequence[Result]) -> dict[str, object]:
        (result,) = results
        if result.error is not None:
            raise ApiError(400, result.error)
        items, status = Items(), STATUSES[reason_of(result) or "abort"]
        list(items.push(self.reader().whole(result.text or ""), self._entries(result)))
        list(_ended(items, status))
        return self.response(status, items, result)

    async def events(self, stream: AsyncStream) -> AsyncIterator[str]:
        numbers, items, reader = count(), Items(), self.reader()
        chunks = Chunks(self.server.settings.stream_interval)

        def event(fields: Mapping[str, object]) -> str:
            numbered = {**fields, "sequence_number": next(numbers)}
            return f"event: {fields['type']}\ndata: {json.dumps(numbered, ensure_ascii=False)}\n\n"

        def reported(status: str, result: Result | None = None, error: ApiError | None = None) -> str:
            response = self.response(status, items, result, error)
            return event({"type": f"response.{'failed' if status == 'cancelled' else status}", "response": response})

        def added(groups: Iterator[Sequence[Piece]]) -> Iterator[str]:
            for own in groups:
                parts = reader.push("".join(piece.text for piece in own), ended=own[-1].finish_reason is not None)
                yield from map(event, items.push(parts, self._entries(own)))

        try:
            yield event({"type": "response.created", "response": self.response("in_progress", items)})
            yield reported("in_progress")
            async with stream:
                async for pieces in stream:
                    for one in added(chunks.add(pieces)):
                        yield one
                for one in added(chunks.rest()):
                    yield one
                (result,) = await stream.results()
            if result.error is not None:
                raise ApiError(400, result.error)
            status = STATUSES[reason_of(result) or "abort"]
            for one in map(event, _ended(items, status)):
                yield one
            yield reported(status, result)
        except Exception as error:
            yield reported("failed", error=api_error(error))

    def response(
        self, status: str, items: Items, result: Result | None = None, error: ApiError | None = None
    ) -> dict[str, object]:
        """The response so far, or its end."""
        asked, sampled = self.asked, self.sampled
        failed = None if error is None else {"code": "server_error", "message": error.message}
        text: dict[str, Any] = {"format": {"type": "text"}}
        if asked.text is not None:
            text |= asked.text.model_dump(by_alias=True, exclude_unset=True)
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": failed,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "model": self.server.settings.names[0],
            "output": items.output,
            "parallel_tool_calls": asked.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": None if asked.reasoning is None else asked.reasoning.effort, "summary": None},
            "store": False,
            "temperature": sampled.temperature,
            "text": text,
            "tool_choice": "auto" if asked.tool_choice is None else asked.tool_choice,
            "tools": asked.tools or [],
            "top_logprobs": asked.top_logprobs or 0,
            "top_p": sampled.top_p,
            "truncation": "disabled",
            "usage": None if result is None else self._usage(result, items),
            "metadata": (asked.model_extra or {}).get("metadata") or {},
            **({} if result is None else self.measured([result])),
        }

    def _usage(self, result: Result, items: Items) -> dict[str, object]:
        """Tokens; those of reasoning are as many as its text has by itself."""
        num_prompt, num_output = len(result.prompt_tokens), len(result.token_ids)
        thoughts = [item["content"][0]["text"] for item in items.output if item["type"] == "reasoning"]
        num_thought = sum(len(self.server.tokenizer.encode(one, special=False)) for one in thoughts)
        return {
            "input_tokens": num_prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": num_output,
            "output_tokens_details": {"reasoning_tokens": min(num_thought, num_output)},
            "total_tokens": num_prompt + num_output,
        }

    def _entries(self, found: Result | Sequence[Piece]) -> list[dict[str, Any]] | None:
        """Log-probabilities of tokens."""
        if isinstance(found, Result):
            pairs = list(zip(found.token_ids, found.logprobs or (), strict=False))
        else:
            pairs = [(piece.token, piece.logprob) for piece in found if piece.logprob is not None]
        read = self.logprobs(pairs) if pairs else None
        return None if read is None else read["content"]


def _ended(items: Items, status: str) -> Iterator[dict[str, Any]]:
    return items.finish("completed" if status == "completed" else "incomplete")


def response_params(body: ResponsesBody, limits: Limits) -> SamplingParams:
    """Those of a response. Raises ApiError naming the field, its value and the limit."""
    with _own_names():
        return chat_params(chat_body(body), limits)


@contextmanager
def _own_names() -> Iterator[None]:
    """Raises what is refused about a chat as ApiError about the fields of this route."""
    try:
        yield
    except (ValueError, ApiError) as error:
        refused = api_error(error)
        message, param = refused.message, refused.param
        for chats, own in CHATS:
            param = None if param is None else chats.sub(own, param)
            message = chats.sub(own, message)
        raise ApiError(refused.status, message, param="input" if param == "messages" else param) from None
