"""The routes of the server."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response

import paceline
from paceline.api.async_engine import AsyncEngine
from paceline.api.engine import Engine
from paceline.serve.chat_prompts import chat_tokens
from paceline.serve.chats import ChatAnswer
from paceline.serve.completions import CompletionAnswer
from paceline.serve.counters import Counters
from paceline.serve.errors import ApiError, add_handlers
from paceline.serve.generation import Server
from paceline.serve.guard import Guard, client_of
from paceline.serve.metrics import add_metrics_route
from paceline.serve.openapi import describe
from paceline.serve.page import add_page_routes
from paceline.serve.replies import spelled
from paceline.serve.response_body import ResponsesBody
from paceline.serve.responses import ResponseAnswer
from paceline.serve.schema import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from paceline.serve.settings import Settings
from paceline.serve.status import add_status_routes
from paceline.serve.transcriptions import add_transcription_routes


def make_app(
    engine: Engine,
    settings: Settings,
    *,
    max_waiting: int = 256,
    max_waiting_tokens: int | None = None,
    drain_seconds: float = 30.0,
) -> FastAPI:
    """An application that serves ``engine``, which nobody else may use; ``state.engine`` is the AsyncEngine that does.
    Ended, it finishes what runs, at most ``drain_seconds`` long.
    """
    counters = Counters()
    served = AsyncEngine(engine, max_waiting=max_waiting, max_waiting_tokens=max_waiting_tokens, observer=counters)
    server, started = Server(served, settings), int(time.time())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with served:
            yield
            await served.drain(drain_seconds)
        await server.grammars.close()

    # Its pages about itself would load scripts from elsewhere; /openapi.json stays.
    app = FastAPI(title="Paceline", version=paceline.__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.engine = served
    app.add_middleware(Guard, settings=settings)
    if settings.allowed_origins:  # around the guard, for browsers ask without a key whether they may ask
        origins = list(settings.allowed_origins)
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
    add_handlers(app)
    describe(app, settings)

    add_status_routes(app, server)
    add_transcription_routes(app, server)
    add_metrics_route(app, served, counters, model=settings.names[0])
    add_page_routes(app, server)

    @app.get("/v1/models")
    async def models() -> dict[str, object]:
        return {"object": "list", "data": [model_of(name) for name in settings.names]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, object]:
        server.check_model(name)
        return model_of(name)

    def model_of(name: str) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": started,
            "owned_by": "paceline",
            "root": settings.names[0],
            "max_model_len": server.max_length,
        }

    @app.post("/v1/completions")
    async def completions(body: CompletionBody, request: Request) -> Response:
        return await CompletionAnswer(server, body, client_of(request)).respond()

    @app.post("/v1/chat/completions")
    async def chat(body: ChatBody, request: Request) -> Response:
        return await ChatAnswer(server, body, client_of(request)).respond()

    @app.post("/v1/responses")
    async def responses(body: ResponsesBody, request: Request) -> Response:
        return await ResponseAnswer(server, body, client_of(request)).respond()

    @app.post("/tokenize")
    async def tokenize(body: TokenizeBody) -> JSONResponse:
        server.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "give one of prompt and messages", param="prompt")
        if body.messages is not None:
            tokens = await chat_tokens(server, body.messages, add_generation_prompt=body.add_generation_prompt)
        else:
            assert body.prompt is not None
            server.check_text(body.prompt, "prompt")
            encode = server.tokenizer.encode
            tokens = await asyncio.to_thread(encode, body.prompt, special=body.add_special_tokens)
        texts = [spelled(server.tokenizer, token) for token in tokens] if body.return_token_strs else None
        return JSONResponse(
            {"count": len(tokens), "max_model_len": server.max_length, "tokens": tokens, "token_strs": texts}
        )

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> JSONResponse:
        server.check_model(body.model)
        unknown = next((token for token in body.tokens if not server.tokenizer.is_known(token)), None)
        if unknown is not None:
            raise ApiError(400, f"tokens: {unknown} is not in the vocabulary", param="tokens")
        return JSONResponse({"prompt": server.tokenizer.decode(body.tokens, skip_special=False)})

    return app
