"""How a browser sends the key: by its own prompt for a password, so that no script of the page ever holds it."""

import base64
import binascii
from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Scope

PREFIX = "/page/"
ASK = 'Basic realm="the key of this server, as the password", charset="UTF-8"'


def is_page(path: str) -> bool:
    """Whether ``path`` is of the page or its files."""
    return path == "/" or path.startswith(PREFIX)


def asking(scope: Scope, refusal: Response) -> Response:
    """``refusal``, which lets a browser ask its user for the key where the page was wanted."""
    if is_page(scope["path"]):
        refusal.headers["WWW-Authenticate"] = ASK
    return refusal


def with_bearer(headers: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """``headers`` with the key as clients send it, where a browser has sent it as a password of any user.

    A browser adds the password to whatever is asked of this server, by pages of others too; those it names in
    ``Origin``, and of them nothing is taken.
    """
    found = dict(headers)
    scheme, _, given = found.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"basic":
        return found
    origin = found.get(b"origin")
    if origin is not None and origin.partition(b"://")[2] != found.get(b"host"):
        return found
    try:
        key = base64.b64decode(given, validate=True).partition(b":")[2]
    except binascii.Error:
        return found
    return {**found, b"authorization": b"Bearer " + key}
