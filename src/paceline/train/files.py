"""Files that are complete or not there: texts and folders flushed to disk, then renamed."""

import os
import shutil
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write and flush to disk."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, text: str) -> None:
    """Write ``text`` to a temporary file, flush it, and rename it to ``path``."""
    part = path.with_suffix(".part")
    write_text(part, text)
    part.replace(path)


def replace_folder(part: Path, path: Path) -> None:
    """Rename ``part`` to ``path``. An existing folder is from an earlier run of the same step and is deleted."""
    if path.exists():
        shutil.rmtree(path)
    part.replace(path)
    if os.name == "posix":
        parent = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)


def make_empty(folder: Path) -> None:
    """Create ``folder``, or delete what is in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def existing(path: Path) -> Path:
    """``path``, or the nearest folder above that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path
