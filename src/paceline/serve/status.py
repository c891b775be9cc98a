"""Routes for those who operate a server, beside ``/metrics``: whether it lives, what it is, how much it has to do."""

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

import paceline
from paceline.serve.errors import ApiError, response_of
from paceline.serve.generation import Server


def add_status_routes(app: FastAPI, server: Server) -> None:
    """Let ``app`` answer ``/health``, ``/ping``, ``/load``, ``/version`` and ``/tokenizer_info``."""

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    @app.head("/ping", include_in_schema=False)
    @app.get("/ping")
    @app.post("/ping", include_in_schema=False)
    async def health() -> Response:  # pyright: ignore[reportUnusedFunction]
        if not server.engine.alive:
            return response_of(ApiError(503, "the engine has ended; start the server again"))
        if server.engine.draining:
            return response_of(ApiError(503, "the server is ending, and takes no more requests"))
        return Response()

    @app.get("/load")
    async def load() -> dict[str, int]:  # pyright: ignore[reportUnusedFunction]
        return {"server_load": server.engine.num_open}

    @app.get("/version")
    async def version() -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        return {"version": paceline.__version__}

    @app.get("/tokenizer_info")
    async def tokenizer_info() -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        tokenizer = server.tokenizer
        inner = tokenizer.inner
        return JSONResponse(
            {
                "tokenizer_class": type(inner).__name__,
                "bos_token": inner.bos_token,
                "eos_token": inner.eos_token,
                "pad_token": inner.pad_token,
                "unk_token": inner.unk_token,
                "additional_special_tokens": sorted(tokenizer.added_tokens),
                "model_max_length": server.max_length,
                "chat_template": tokenizer.template or None,
            }
        )
