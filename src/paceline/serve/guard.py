"""What every request passes first, whatever its route: the key, or where it comes from, and the size of its body."""

import asyncio
import hmac
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.serve.errors import ApiError, response_of
from paceline.serve.page_key import asking, with_bearer
from paceline.serve.settings import Settings


class Guard:
    """Answers 401 without a key, compared in constant time, 413 for a body that is too large, and 408 for one that does
    not come. Where no key is needed, 403 to what a web page of somebody else asks.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limits, size, deadline = self.settings.limits, 0, float("inf")
        refusal = self._refusal(with_bearer(dict(scope["headers"])))
        if refusal is not None:
            await _refuse(refusal, scope, receive, send)
            return
        answered, complete = False, False

        async def counted() -> Message:
            nonlocal size, deadline, complete, refusal
            if complete:  # what is waited for is that the client leaves
                return await receive()
            deadline = min(deadline, asyncio.get_running_loop().time() + limits.body_seconds)
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError as error:
                seconds = f"{limits.body_seconds:g} s"
                refusal = ApiError(408, f"the body has not come within {seconds}, which is what this server waits")
                raise refusal from error
            complete = not message.get("more_body", False)
            size += len(message.get("body", b""))
            if size > limits.body_bytes:
                refusal = self._too_large()
                raise refusal
            return message

        async def answer(message: Message) -> None:
            nonlocal answered
            if refusal is None:
                await send(message)
            elif not answered:  # in the place of what the application makes of a body that broke off
                answered = True
                await _refuse(refusal, scope, receive, send)

        await self.app(scope, counted, answer)

    def _refusal(self, headers: Mapping[bytes, bytes]) -> ApiError | None:
        """Why nothing of the request is read."""
        if self.settings.api_keys and not self._knows(headers.get(b"authorization", b"")):
            return ApiError(401, "the key is missing or wrong: send it as `Authorization: Bearer KEY`")
        if self.settings.hosts and not self.settings.api_keys and (reason := self._foreign(headers)):
            return ApiError(403, reason)
        stated = headers.get(b"content-length", b"0")
        return self._too_large() if stated.isdigit() and int(stated) > self.settings.limits.body_bytes else None

    def _too_large(self) -> ApiError:
        most = self.settings.limits.body_bytes
        return ApiError(413, f"the body is larger than {most} bytes, which is what this server takes")

    def _knows(self, given: bytes) -> bool:
        """Whether a key is sent; the time that this takes tells nothing of them."""
        return any([hmac.compare_digest(given, f"Bearer {key}".encode()) for key in self.settings.api_keys])

    def _foreign(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Why a browser may be asking for a page that is not of this machine: by a name that such a page had resolved
        to this address, or by its scripts. None for what may be answered.
        """
        host, origin = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin"))
        if _name(f"//{host}") not in self.settings.hosts:
            return f"host {host!r:.80}: without a key this server answers to {', '.join(self.settings.hosts)} alone"
        own = origin.lower() in (f"http://{host}".lower(), f"https://{host}".lower())
        if origin and origin not in self.settings.allowed_origins and not own:
            return f"origin {origin!r:.80}: allow its scripts with --allowed-origins"
        return None


def client_of(request: Request) -> str:
    """Whose request it is, for fairness and for what drafters may copy from: the client's key, else its address."""
    return request.headers.get("authorization") or (request.client.host if request.client else "")


def _name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


async def _refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer, and read no more of a body that may still come."""
    response = response_of(error)
    if error.status == 401:
        response = asking(scope, response)
    response.headers["connection"] = "close"
    await response(scope, receive, send)
