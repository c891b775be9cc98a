"""What answers have in common: a request becomes a submission, and its pieces an answer or a stream of events."""

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.api.async_engine import AsyncEngine
from paceline.api.async_streams import AsyncStream
from paceline.api.draft_choice import draft_choices
from paceline.api.params import SamplingParams
from paceline.api.results import Piece, Result
from paceline.serve.chunks import Chunks
from paceline.serve.drafting import read_drafts
from paceline.serve.errors import ApiError, api_error, body_of
from paceline.serve.grammar_guard import GrammarGuard
from paceline.serve.replies import metrics, usage, usage_of
from paceline.serve.schema import GenerationBody
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
    def drafters(self) -> tuple[str, ...]:
        """Among which a request may choose."""
        decoder = self.engine.engine.decoder
        return tuple(draft_choices(decoder.drafter, decoder.plan))

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's. Raises ApiError if there is none."""
        found = self.engine.engine.target.tokenizer
        if found is None:
            raise ApiError(400, f"{self.settings.names[0]} has no tokenizer, and so reads and writes no texts")
        return found

    @property
    def reads_sources(self) -> bool:
        """Whether prompts are read by an encoder."""
        return bool(self.engine.engine.target.lm.context_inputs)

    def truncated(self, tokens: list[int], body: GenerationBody, params: SamplingParams) -> list[int]:
        """The last of ``tokens``, as many as ``truncate_prompt_tokens`` says; -1: as there is room for beside
        ``max_tokens``. Raises ApiError for 0.
        """
        most, param = body.truncate_prompt_tokens, "truncate_prompt_tokens"
        if most is None:
            return tokens
        if most == 0:
            raise ApiError(400, f"{param}=0: give at least 1, or -1 for as many as fit", param=param)
        return tokens[-most if most > 0 else -max(1, self.max_length - (params.max_tokens or 1)) :]

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
    async def prompts(self, params: SamplingParams) -> list[Any]: ...

    def bound(self, params: SamplingParams, prompts: Sequence[Any]) -> SamplingParams:
        """``params`` with what depends on the prompts."""
        return params

    def refusal(self, error: Exception) -> Exception:
        """What a request is answered that the engine did not take."""
        return error

    @abstractmethod
    def choice(self, result: Result) -> dict[str, object]: ...

    @abstractmethod
    def change(self, number: int, pieces: Sequence[Piece]) -> dict[str, object] | None:
        """What the choice ``number`` has gained; None where there is nothing to send yet."""
        ...

    def root(self, results: Sequence[Result]) -> dict[str, object]:
        """What a whole answer has beside its choices."""
        return {}

    def opening(self) -> Iterable[dict[str, object]]:
        """Choices of the first event."""
        return ()

    async def submit(self) -> AsyncStream:
        """Submit the request. Raises ApiError, and what submitting raises."""
        limits = self.server.settings.limits
        params = self.params()
        prompts = await self.prompts(params)
        if len(prompts) > limits.prompts:
            raise ApiError(400, f"{len(prompts)} prompts, at most {limits.prompts} are taken", param="prompt")
        if len(prompts) * params.n > limits.outputs:
            raise ApiError(
                400,
                f"n={params.n} of {len(prompts)} prompts: at most {limits.outputs} outputs are made for a request",
                param="n",
            )
        params = self.bound(params, prompts)
        check_steps(self.body, self.server.settings)
        config, server = self.body.speculative_config, self.server
        drafts = read_drafts(config, most=server.max_draft_tokens, drafters=server.drafters)
        try:
            await self.server.grammars.check(self.server.engine.engine.target.tokenizer, params)
            return await self.server.engine.submit(
                prompts,
                params,
                priority=self.body.priority,
                client=self.client,
                timeout=limits.seconds,
                steps=self.body.return_steps,
                num_draft_tokens=drafts.most,
                drafter=drafts.drafter,
            )
        except (ValueError, ApiError) as error:
            raise self.refusal(error) from None

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
        return answer | self.root(results) | self.measured(results)

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

        def changed(groups: Iterable[Sequence[Piece]]) -> Iterator[str]:
            nonlocal written
            for own in groups:
                written += len(own)
                number = own[0].index * self.body.n + own[0].sample
                change = self.change(number, own)
                if change is not None:
                    steps = {"steps": steps_of(self.server.tokenizer, own)} if self.body.return_steps else {}
                    yield event({"index": number, **change, **steps})

        try:
            async with stream:  # left when the client leaves, too
                for choice in self.opening():
                    yield event(choice)
                async for pieces in stream:
                    for one in changed(chunks.add(pieces)):
                        yield one
                for one in changed(chunks.rest()):
                    yield one
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


def _event(data: Mapping[str, object]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"
