"""The options that say what a text must look like, as structured_outputs. Loads no torch."""

from collections.abc import Sequence
from pathlib import Path


def structure(
    *, json: Path | None, regex: str | None, grammar: Path | None, choice: Sequence[str] | None
) -> dict[str, object] | None:
    """What is given, at most one of them. Raises ValueError for more, and for a file that cannot be read."""
    options = {"--json-schema": json, "--regex": regex, "--grammar": grammar, "--choice": choice or None}
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)}: give one of them")
    if json is not None:
        return {"json": _read("--json-schema", json)}
    if grammar is not None:
        return {"grammar": _read("--grammar", grammar)}
    if regex is not None:
        return {"regex": regex}
    return {"choice": list(choice)} if choice else None


def _read(option: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{option} {path}: cannot be read as text ({error})") from error
