"""What every request passes first, whatever its route: the key, and the size of its body."""

import hmac

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.serve.errors import ApiError, response_of
from paceline.serve.page_key import asking, with_bearer
from paceline.serve.settings import Settings


class Guard:
    """Answers 401 without the key, compared in constant time, and 413 for a body that is too large."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = with_bearer(dict(scope["headers"]))
        key = self.settings.api_key
        if key is not None and not hmac.compare_digest(headers.get(b"authorization", b""), f"Bearer {key}".encode()):
            error = ApiError(401, "the key is missing or wrong: send it as `Authorization: Bearer KEY`")
            await asking(scope, response_of(error))(scope, receive, send)
            return
        most, size = self.settings.limits.body_bytes, 0
        too_large = ApiError(413, f"the body is larger than {most} bytes, which is what this server takes")
        stated = headers.get(b"content-length", b"0")
        if stated.isdigit() and int(stated) > most:
            await response_of(too_large)(scope, receive, send)
            return

        answered = False

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > most:
                raise too_large
            return message

        async def answer(message: Message) -> None:
            nonlocal answered
            if size <= most:
                await send(message)
            elif not answered:  # in the place of what the application makes of a body that broke off
                answered = True
                await response_of(too_large)(scope, receive, send)

        await self.app(scope, counted, answer)
