"""Directories of the embedded demo models and their draft heads, if ``paceline-demo`` is installed."""

from importlib import import_module
from pathlib import Path
from types import ModuleType


def embedded_pair() -> tuple[Path, Path]:
    """Directories of the target and the draft model. Raises ValueError if ``paceline-demo`` is not installed."""
    package = _package()
    return package.target(), package.draft()


def embedded_heads() -> tuple[Path, ...]:
    """Directories of the target's draft heads: early exit, prophet and MTP. Raises ValueError as ``embedded_pair``."""
    package = _package()
    return package.early_exit(), package.prophet(), package.mtp()


def _package() -> ModuleType:
    try:
        return import_module("paceline_demo")
    except ModuleNotFoundError as error:
        raise ValueError(
            "the embedded models are not installed: run pip install 'paceline[demo]', or give --target DIR --draft DIR"
        ) from error
