"""What a request says about its drafts: that there be none, or how long they are at most."""

from collections.abc import Mapping
from typing import Any

from paceline.serve.errors import ApiError

KEYS = ("num_speculative_tokens", "method")
OFF = "none"


def draft_limit(config: Mapping[str, Any] | None, *, most: int) -> int | None:
    """The draft tokens per step at most that a request's ``speculative_config`` asks for; None: as the server drafts,
    which is up to ``most``. Raises ApiError for what a request cannot choose.
    """
    given = {name: value for name, value in (config or {}).items() if value is not None}
    unknown = next((name for name in given if name not in KEYS), None)
    if unknown is not None:
        raise _refused(unknown, given[unknown], f"of a request only {' and '.join(KEYS)} are read; leave it out")
    count, method = given.get("num_speculative_tokens"), given.get("method")
    if method not in (None, OFF):
        raise _refused("method", method, f"the drafter is the server's; give {OFF!r} or leave it out")
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= most):
        raise _refused("num_speculative_tokens", count, f"give 0 (no drafts) to {most}, the server's own limit")
    if method == OFF and count:
        raise _refused("num_speculative_tokens", count, f"with method {OFF!r} there are no drafts; give one of the two")
    return 0 if method == OFF else count


def _refused(name: str, value: object, reason: str) -> ApiError:
    param = f"speculative_config.{name}"
    return ApiError(400, f"{param}={value!r:.80}: {reason}", param=param)
