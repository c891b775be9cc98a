"""Audits of a model, or of a server that claims to serve it: equality with plain decoding, goodness of fit, acceptance.

Needs the extra ``audit``: importing any of these modules without it raises MissingExtraError.
"""

from importlib.util import find_spec


class MissingExtraError(ImportError, ValueError):
    """A package of the extra ``audit`` is not installed."""


if _missing := [package for package in ("httpx", "scipy") if find_spec(package) is None]:
    raise MissingExtraError(
        f"paceline audit needs {' and '.join(_missing)}, not installed here: run pip install 'paceline[audit]'"
    )
