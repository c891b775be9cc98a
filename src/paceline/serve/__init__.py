"""The server: an engine behind the HTTP interface of OpenAI."""

from importlib.util import find_spec

_missing = [name for name in ("fastapi", "uvicorn", "prometheus_client", "python_multipart") if find_spec(name) is None]
if _missing:
    raise ValueError(
        f"paceline serve needs {' and '.join(_missing)}, not installed here: run pip install 'paceline[serve]'"
    )
