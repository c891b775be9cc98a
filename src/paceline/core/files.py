"""Where files of this user are kept between runs, and files that are written whole or not at all."""

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """``name`` in $PACELINE_CACHE, by default in $XDG_CACHE_HOME/paceline or ~/.cache/paceline. It may not exist."""
    own = os.environ.get("PACELINE_CACHE")
    if own:
        return Path(own) / name
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline" / name


def write_whole(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` whole or not at all, in a folder that is made. Raises OSError where it cannot be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
