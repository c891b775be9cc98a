"""The page at ``/``, on which drafts can be seen: files of this package, and what the page needs to know at first."""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

import paceline
from paceline.serve.generation import Server
from paceline.serve.page_key import PREFIX

KINDS = {"html": "text/html; charset=utf-8", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# What the page loads and asks comes from this server; a script that found its way into a text would not run.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@cache
def page_files() -> Mapping[str, bytes]:
    """The files by name, read once: no request chooses a path."""
    folder = files("paceline.serve").joinpath("page")
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.name.rpartition(".")[2] in KINDS}


def add_page_routes(app: FastAPI, server: Server) -> None:
    """``/``, ``/page/FILE`` and ``/page/about``, which are no part of the interface that /openapi.json describes."""

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        return _answer("index.html", request)

    @app.get(f"{PREFIX}about", include_in_schema=False)
    async def about() -> Response:  # pyright: ignore[reportUnusedFunction]
        return JSONResponse(_about(server), headers=HEADERS)

    for name in page_files():
        if name != "index.html":
            app.add_api_route(PREFIX + name, _route(name), methods=["GET"], include_in_schema=False)


def _route(name: str):
    async def answer(request: Request) -> Response:
        return _answer(name, request)

    return answer


def _answer(name: str, request: Request) -> Response:
    content = page_files()[name]
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**HEADERS, "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=KINDS[name.rpartition(".")[2]], headers=headers)


def _about(server: Server) -> dict[str, object]:
    """The model, the drafter and what requests may ask for."""
    engine = server.engine.engine
    decoder, tokenizer = engine.decoder, engine.target.tokenizer
    depth = decoder.plan.max_draft_tokens
    return {
        "version": paceline.__version__,
        "model": server.settings.names[0],
        "chat": tokenizer is not None and tokenizer.has_chat_template,
        "max_model_len": server.max_length,
        "max_outputs": server.settings.limits.samples,
        "return_steps": server.settings.return_steps,
        "drafters": list(decoder.drafter.origins) if depth else [],
        "num_draft_tokens": depth,
        "lossless": engine.lossless,
    }
