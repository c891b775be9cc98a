"""Errors as OpenAI's clients read them: ``{"error": {"message", "type", "param", "code"}}``."""

import logging
import re
import uuid
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from paceline.api.async_streams import DeadlineError, DrainingError, OverloadedError

if TYPE_CHECKING:  # FastAPI is an extra: what answers requests of files, too, does without
    from fastapi import FastAPI, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException

logger = logging.getLogger("paceline")

FORM = re.compile(r"(str|int|float|bool|dict|list)\b(?!_)")  # in the place of an error: which form of a field
# Where a file lies, but not a route; its name is left.
PLACE = re.compile(r"(?<![\w/:.])(?:[A-Za-z]:)?[\\/](?!v1/)(?:[\w.@+-]+[\\/])+([\w.@+-]*)")
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}")
PARSER = re.compile(r"\s*<state>.*", re.DOTALL)  # what a grammar's parser adds about itself
LONGEST = 1200  # characters of a message
TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def shown(message: str) -> str:
    """``message`` as clients may see it: without where files lie or objects are on the server, and not too long."""
    kept = PARSER.sub("", ADDRESS.sub("0x...", PLACE.sub(r"\1", message)))
    return kept if len(kept) <= LONGEST else f"{kept[:LONGEST]}..."


class ApiError(Exception):
    """An answer other than success. ``param`` is the field that it is about; None if it is about no single one."""

    def __init__(self, status: int, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, shown(message), param


def body_of(error: ApiError) -> dict[str, object]:
    """Its JSON."""
    kind = TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "internal_server_error")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.status}}


def response_of(error: ApiError) -> "JSONResponse":
    """Its answer. One that may succeed later says when to try again."""
    from fastapi.responses import JSONResponse

    headers = {"Retry-After": "1"} if error.status in (429, 503) else None
    return JSONResponse(body_of(error), status_code=error.status, headers=headers)


def api_error(error: Exception) -> ApiError:
    """``error`` as the client is told it: what is no fault of the request has a number to find it in the log by."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, OverloadedError):
        return ApiError(429, str(error))
    if isinstance(error, DrainingError):
        return ApiError(503, str(error))
    if isinstance(error, DeadlineError):
        return ApiError(408, str(error))
    if isinstance(error, ValueError | TypeError):
        return ApiError(400, str(error))
    number = uuid.uuid4().hex[:12]
    logger.error("request %s failed", number, exc_info=error)
    return ApiError(500, f"the server failed on this request; its log says why, under {number}")


def invalid_body(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """What pydantic found wrong with a body."""
    # Of a field that may have one of several forms there is an error for each; the deepest is of the likeliest.
    first = max(errors, key=lambda one: len(one["loc"]))
    place = [str(part) for part in first["loc"] if part != "body"]
    param = ".".join(takewhile(lambda part: not FORM.match(part), place)) or None
    found = first.get("input")
    shown = "" if first["type"] == "missing" or isinstance(found, dict | list) else f", not {found!r:.80}"
    return ApiError(400, f"{param or 'body'}: {first['msg']}{shown}", param=param)


def add_handlers(app: "FastAPI") -> None:
    """Let ``app`` answer every error in this form."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    @app.exception_handler(RequestValidationError)
    async def invalid(request: "Request", error: "RequestValidationError") -> "JSONResponse":  # pyright: ignore[reportUnusedFunction]
        kind = request.headers.get("content-type", "")
        if any(one["loc"] == ("body",) for one in error.errors()) and isinstance(error.body, bytes):
            reason = f"content-type {kind!r:.80}: send the body as JSON, with content-type: application/json"
            return response_of(ApiError(415, reason))
        return response_of(invalid_body(error.errors()))

    @app.exception_handler(HTTPException)
    async def refused(_: "Request", error: "HTTPException") -> "JSONResponse":  # pyright: ignore[reportUnusedFunction]
        found = ApiError(error.status_code, str(error.detail or HTTPStatus(error.status_code).phrase))
        answer = response_of(found)
        answer.headers.update(error.headers or {})  # such as those that a method not allowed names
        return answer

    @app.exception_handler(Exception)
    async def failed(_: "Request", error: Exception) -> "JSONResponse":  # pyright: ignore[reportUnusedFunction]
        return response_of(api_error(error))

    app.add_exception_handler(ApiError, failed)
    app.add_exception_handler(ValueError, failed)
    for kind in (OverloadedError, DrainingError, DeadlineError):
        app.add_exception_handler(kind, failed)
