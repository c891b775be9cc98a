"""Where the embedded pair of models lies, if its package is installed."""

from importlib import import_module
from pathlib import Path


def embedded_pair() -> tuple[Path, Path]:
    """Directories of the target and the draft in ``paceline-demo``. Raises ValueError if it is not installed."""
    try:
        package = import_module("paceline_demo")
    except ModuleNotFoundError as error:
        raise ValueError(
            "the embedded models are not installed: run pip install 'paceline[demo]', or give --target DIR --draft DIR"
        ) from error
    return package.target(), package.draft()
