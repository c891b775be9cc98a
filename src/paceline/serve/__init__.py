"""The server: an engine behind the HTTP interface of OpenAI. Files of requests are answered without HTTP."""

from importlib.util import find_spec


def check_installed() -> None:
    """Raise ValueError where the extra is missing that HTTP needs."""
    needed = ("fastapi", "uvicorn", "prometheus_client", "python_multipart")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"paceline serve needs {' and '.join(missing)}, not installed here: run pip install 'paceline[serve]'"
        )
