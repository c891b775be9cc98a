"""JSON as its standard has it: without NaN and infinities, which Python's json module would write."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import cast


def to_json(value: object) -> str:
    """``value`` in one line; numbers that JSON does not have are null."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:  # rare, and only then is everything walked through
        return json.dumps(_finite(value), allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in cast("Mapping[object, object]", value).items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(inner) for inner in cast("Sequence[object]", value)]
    return value
