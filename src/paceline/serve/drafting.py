"""What a request says about its drafts: that there be none, how long they are at most, or who drafts."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from paceline.serve.errors import ApiError

KEYS = ("num_speculative_tokens", "method")
OFF = "none"
NAMES = {"draft_model": "model"}  # of vLLM, where they differ


class Drafts(NamedTuple):
    """Draft tokens per step at most, and the drafter by its name; None: as the server drafts."""

    most: int | None
    drafter: str | None


def read_drafts(config: Mapping[str, Any] | None, *, most: int, drafters: Collection[str]) -> Drafts:
    """What a request's ``speculative_config`` asks for, where the server drafts up to ``most`` tokens by ``drafters``.
    Raises ApiError for what a request cannot choose.
    """
    given = {name: value for name, value in (config or {}).items() if value is not None}
    unknown = next((name for name in given if name not in KEYS), None)
    if unknown is not None:
        raise _refused(unknown, given[unknown], f"of a request only {' and '.join(KEYS)} are read; leave it out")
    count, method = given.get("num_speculative_tokens"), given.get("method")
    drafter = NAMES.get(method, method) if isinstance(method, str) else method
    if drafter not in (None, OFF, *drafters):
        raise _refused("method", method, f"this server has {', '.join((OFF, *drafters))}; give one of these")
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= most):
        raise _refused("num_speculative_tokens", count, f"give 0 (no drafts) to {most}, the server's own limit")
    if drafter == OFF and count:
        raise _refused("num_speculative_tokens", count, f"with method {OFF!r} there are no drafts; give one of the two")
    return Drafts(0, None) if drafter == OFF else Drafts(count, drafter)


def _refused(name: str, value: object, reason: str) -> ApiError:
    param = f"speculative_config.{name}"
    return ApiError(400, f"{param}={value!r:.80}: {reason}", param=param)
