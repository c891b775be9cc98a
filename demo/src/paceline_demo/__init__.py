"""Two small language models of Python source, and heads of the larger one, as package data: only where they lie."""

from importlib.resources import files
from pathlib import Path


def target() -> Path:
    """Directory of the target model."""
    return _directory("target")


def draft() -> Path:
    """Directory of its draft model."""
    return _directory("draft")


def early_exit() -> Path:
    """Directory of the target's early exit."""
    return _directory("early_exit")


def prophet() -> Path:
    """Directory of the target's prophet."""
    return _directory("prophet")


def mtp() -> Path:
    """Directory of the target's MTP layer."""
    return _directory("mtp")


def _directory(name: str) -> Path:
    # Models are read by path, so the package must lie unpacked, as installers leave it.
    return Path(str(files("paceline_demo").joinpath(name)))
