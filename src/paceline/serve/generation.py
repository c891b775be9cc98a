"""Completions and chats: a request becomes a submission, and its pieces an answer or a stream of events."""

import asyncio
import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from paceline.api.async_engine import AsyncEngine
from paceline.api.async_streams import AsyncStream
from paceline.api.params import SamplingParams
from paceline.api.results import Piece, Result
from paceline.serve.chunks import Chunks
from paceline.serve.drafting import draft_limit
from paceline.serve.errors import ApiError, api_error, body_of
from paceline.serve.grammar_guard import GrammarGuard
from paceline.serve.replies import chat_logprobs, completion_logprobs, metrics, reason_of, usage, usage_of
from paceline.serve.sampling import chat_params, completion_params
from paceline.serve.schema import ChatBody, CompletionBody, GenerationBody, Message
from paceline.serve.settings import Settings
from paceline.serve.steps import check_steps, steps_of
from paceline.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # an extra, which answers to requests of files do without
    from fastapi.responses import Response

CHARACTERS = 64  # of a token at most, on average: a longer text is too long before it is encoded


@dataclass(frozen=True, slots=True)
class Server:
    """What answers are made with."""

    engine: AsyncEngine
    settings: Settings
    grammars: GrammarGuard = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "grammars", GrammarGuard(self.settings.limits.grammar_seconds))

    @property
    def max_length(self) -> int:
        """Tokens of a request at most, prompt included."""
        return self.engine.engine.decoder.batch.max_length

    @property
    def max_draft_tokens(self) -> int:
        """Of a step, at most."""
        return self.engine.engine.decoder.plan.max_draft_tokens

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's. Raises ApiError if there is none."""
        found = self.engine.engine.target.tokenizer
        if found is None:
            raise ApiError(400, f"{self.settings.names[0]} has no tokenizer, and so reads and writes no texts")
        return found

    def check_model(self, name: str | None) -> None:
        """Raise ApiError for a name that the model does not have."""
        check_model(self.settings, name)

    def check_text(self, text: str, param: str) -> None:
        """Raise ApiError for a text that is certainly too long."""
        if len(text) > CHARACTERS * self.max_length:
            reason = f"{param} has {len(text)} characters, too many for a context of {self.max_length} tokens"
            raise ApiError(400, reason, param=param)


def check_model(settings: Settings, name: str | None) -> None:
    """Raise ApiError for a name that the model does not have."""
    if name is not None and name not in settings.names:
        known = ", ".join(settings.names)
        raise ApiError(404, f"model {name!r} does not exist; this server has {known}", param="model")


class Answer(ABC):
    """The answer to one request: whole, or as a stream."""

    kind: str
    chunk_kind: str
    prefix: str

    def __init__(self, server: Server, body: GenerationBody, client: str) -> None:
        self.server, self.body, self.client = server, body, client
        self.id, self.created = f"{self.prefix}-{uuid.uuid4().hex}", int(time.time())
        server.check_model(body.model)

    @abstractmethod
    def params(self) -> SamplingParams: ...

    @abstractmethod
    async def prompts(self) -> list[Any]: ...

    @abstractmethod
    def choice(self, result: Result) -> dict[str, object]: ...

    @abstractmethod
    def change(self, pieces: Sequence[Piece]) -> dict[str, object]: ...

    def opening(self) -> Iterable[dict[str, object]]:
        """Choices of the first event."""
        return ()

    async def submit(self) -> AsyncStream:
        """Submit the request. Raises ApiError, and what submitting raises."""
        limits = self.server.settings.limits
        params, prompts = self.params(), await self.prompts()
        if len(prompts) > limits.prompts:
            raise ApiError(400, f"{len(prompts)} prompts, at most {limits.prompts} are taken", param="prompt")
        if len(prompts) * params.n > limits.outputs:
            raise ApiError(
                400,
                f"n={params.n} of {len(prompts)} prompts: at most {limits.outputs} outputs are made for a request",
                param="n",
            )
        check_steps(self.body, self.server.settings)
        await self.server.grammars.check(self.server.engine.engine.target.tokenizer, params)
        return await self.server.engine.submit(
            prompts,
            params,
            priority=self.body.priority,
            client=self.client,
            timeout=limits.seconds,
            steps=self.body.return_steps,
            num_draft_tokens=draft_limit(self.body.speculative_config, most=self.server.max_draft_tokens),
        )

    async def respond(self) -> "Response":
        """Submit, and answer. Raises as ``submit`` does, before anything is sent."""
        from fastapi.responses import JSONResponse, StreamingResponse

        stream = await self.submit()
        if self.body.stream:
            return StreamingResponse(self.events(stream), media_type="text/event-stream")
        async with stream:
            return JSONResponse(self.whole(await stream.results()))

    def whole(self, results: Sequence[Result]) -> dict[str, object]:
        """The JSON of an answer that is not streamed. Raises ApiError where an output failed."""
        failed = next((one.error for one in results if one.error is not None), None)
        if failed is not None:
            raise ApiError(400, failed)
        answer = {**self.head(self.kind), "choices": [self.choice(one) for one in results], "usage": usage(results)}
        return answer | self.measured(results)

    def head(self, kind: str) -> dict[str, object]:
        """What every answer and event begins with."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.server.settings.names[0]}

    def measured(self, results: Sequence[Result]) -> dict[str, object]:
        """``metrics``, where the server gives them."""
        if not self.server.settings.per_request_metrics:
            return {}
        return {"metrics": metrics(results, num_draft_tokens=self.server.max_draft_tokens)}

    async def events(self, stream: AsyncStream) -> AsyncIterator[str]:
        """Server-sent events: one for the tokens that an output gained in a step, or for as many as
        the server says, usage at the end, and [DONE]."""
        options = self.body.stream_options
        counting = options is not None and options.continuous_usage_stats
        head, written = self.head(self.chunk_kind), 0
        num_prompt, chunks = sum(stream.prompt_lengths), Chunks(self.server.settings.stream_interval)

        def event(choice: dict[str, object]) -> str:
            chunk = {**head, "choices": [choice]}
            return _event(chunk | ({"usage": usage_of(num_prompt, written)} if counting else {}))

        def changed(own: Sequence[Piece]) -> str:
            nonlocal written
            written += len(own)
            number = own[0].index * self.body.n + own[0].sample
            choice = {"index": number, **self.change(own), "finish_reason": reason_of(own[-1])}
            if self.body.return_steps:
                choice["steps"] = steps_of(self.server.tokenizer, own)
            return event(choice)

        try:
            async with stream:  # left when the client leaves, too
                for choice in self.opening():
                    yield event(choice)
                async for pieces in stream:
                    for own in chunks.add(pieces):
                        yield changed(own)
                for own in chunks.rest():
                    yield changed(own)
                results = await stream.results()
            failed = next((one.error for one in results if one.error is not None), None)
            if failed is not None:
                raise ApiError(400, failed)
            if options is not None and options.include_usage:
                yield _event({**head, "choices": [], "usage": usage(results)} | self.measured(results))
        except Exception as error:
            yield _event(body_of(api_error(error)))
        yield "data: [DONE]\n\n"

    def number(self, found: Result) -> int:
        """Of a choice."""
        return found.index * self.body.n + found.sample


@final
class CompletionAnswer(Answer):
    """Of ``/v1/completions``."""

    kind, chunk_kind, prefix = "text_completion", "text_completion", "cmpl"
    body: CompletionBody

    def params(self) -> SamplingParams:
        if self.body.echo and self.body.stream:
            raise ApiError(400, "echo with stream: give one of them", param="echo")
        return completion_params(self.body, self.server.settings.limits)

    async def prompts(self) -> list[Any]:
        asked = self.body.prompt
        given: list[Any] = [asked] if isinstance(asked, str) or (asked and isinstance(asked[0], int)) else list(asked)
        if not given:
            raise ApiError(400, "prompt: an empty list; give a text, token ids, or a list of these", param="prompt")
        for text in given:
            if isinstance(text, str):
                self.server.check_text(text, "prompt")
        return given

    def choice(self, result: Result) -> dict[str, object]:
        text, tokens, found = result.text or "", list(result.token_ids), list[Any](result.logprobs or ())
        prompt = ""
        if self.body.echo:
            prompt = self.server.tokenizer.decode(result.prompt_tokens)
        if self.body.echo and result.prompt_logprobs is not None:
            score = result.prompt_logprobs
            before = [
                None if value is None else _Scored(value, top or ())
                for value, top in zip(score.logprobs, score.top, strict=True)
            ]
            tokens, found = [*score.tokens, *tokens], [*before, *found]
        logprobs = None
        if self.body.logprobs is not None:
            logprobs = completion_logprobs(self.server.tokenizer, tokens, found)
        return {
            "index": self.number(result),
            "text": prompt + text,
            "logprobs": logprobs,
            "finish_reason": reason_of(result),
            "stop_reason": result.stop_reason,
        }

    def change(self, pieces: Sequence[Piece]) -> dict[str, object]:
        logprobs = None
        if self.body.logprobs is not None:
            tokens = [piece.token for piece in pieces]
            logprobs = completion_logprobs(self.server.tokenizer, tokens, [piece.logprob for piece in pieces])
        return {"text": "".join(piece.text for piece in pieces), "logprobs": logprobs}


@dataclass(frozen=True, slots=True)
class _Scored:
    """A prompt's token as ``completion_logprobs`` reads it."""

    raw: float
    top_raw: Sequence[tuple[int, float]]


@final
class ChatAnswer(Answer):
    """Of ``/v1/chat/completions``."""

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"
    body: ChatBody

    def params(self) -> SamplingParams:
        return chat_params(self.body, self.server.settings.limits)

    async def prompts(self) -> list[Any]:
        return [await chat_tokens(self.server, self.body.messages, self.body)]

    def opening(self) -> Iterable[dict[str, object]]:
        for index in range(self.body.n):
            yield {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}

    def choice(self, result: Result) -> dict[str, object]:
        logprobs = None
        if result.logprobs is not None:
            pairs = list(zip(result.token_ids, result.logprobs, strict=True))
            logprobs = chat_logprobs(self.server.tokenizer, pairs)
        return {
            "index": self.number(result),
            "message": {"role": "assistant", "content": result.text or ""},
            "logprobs": logprobs,
            "finish_reason": reason_of(result),
            "stop_reason": result.stop_reason,
        }

    def change(self, pieces: Sequence[Piece]) -> dict[str, object]:
        pairs = [(piece.token, piece.logprob) for piece in pieces if piece.logprob is not None]
        logprobs = chat_logprobs(self.server.tokenizer, pairs) if pairs else None
        return {"delta": {"content": "".join(piece.text for piece in pieces)}, "logprobs": logprobs}


async def chat_tokens(server: Server, messages: Sequence[Message], options: Any) -> list[int]:
    """A chat's token ids. Raises ApiError for messages that are not of text, and what the template raises."""
    plain: list[dict[str, object]] = []
    for number, message in enumerate(messages):
        text = _text_of(message, f"messages.{number}.content")
        server.check_text(text, f"messages.{number}.content")
        plain.append({**(message.model_extra or {}), "role": message.role, "content": text})
    return await asyncio.to_thread(
        server.tokenizer.chat,
        plain,
        add_generation_prompt=options.add_generation_prompt and not getattr(options, "continue_final_message", False),
        continue_final_message=getattr(options, "continue_final_message", False),
    )


def _text_of(message: Message, param: str) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    texts: list[str] = []
    for part in message.content:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ApiError(400, f"{param}: a part of type {part.get('type')!r}; only texts are read", param=param)
        texts.append(part["text"])
    return "".join(texts)


def _event(data: Mapping[str, object]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"
