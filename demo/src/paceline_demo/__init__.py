"""Two small language models of Python source as package data. Contains no code but where they lie."""

from importlib.resources import files
from pathlib import Path


def target() -> Path:
    """Directory of the target model."""
    return _directory("target")


def draft() -> Path:
    """Directory of its draft model."""
    return _directory("draft")


def _directory(name: str) -> Path:
    # Models are read by path, so the package must lie unpacked, as installers leave it.
    return Path(str(files("paceline_demo").joinpath(name)))
