"""Prompts with continuations, from a file of them. Reads; scores nothing."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEYS = ("prompt", "continuation", "id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One line; ``error`` says why it is none. Whether the values can be scored is for the scorer to say."""

    index: int
    id: Any = None
    prompt: Any = None  # a text, token ids, messages, or None for the beginning of a text
    continuation: Any = None  # a text or token ids
    error: str | None = None

    @property
    def name(self) -> str:
        return f"line {self.index + 1}"


def read_pairs(path: Path) -> list[Pair]:
    """Every line of a .jsonl file. Raises ValueError for a file that is missing or has no lines."""
    lines = read_file(path, option="--file").removesuffix(b"\n").split(b"\n")
    if lines == [b""]:
        raise ValueError(f'--file {path}: no lines in it; give objects like {{"prompt": "...", "continuation": "..."}}')
    return [_pair(index, line) for index, line in enumerate(lines)]


def read_file(path: Path, *, option: str) -> bytes:
    """What a file holds. Raises ValueError, naming the option that named it, where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{option} {path}: {error.strerror}; give a file that can be read") from error


def _pair(index: int, line: bytes) -> Pair:
    try:
        value = json.loads(line)
    except ValueError as error:  # broken JSON, or bytes that are no text
        return Pair(index=index, error=f"line {index + 1}: not JSON ({error}): give an object")
    if not isinstance(value, dict):
        return Pair(index=index, error=f"line {index + 1}: no JSON object: give one with prompt and continuation")
    missing = [key for key in KEYS[:2] if key not in value]
    unknown = [key for key in value if key not in KEYS]
    if missing or unknown:
        reason = f"no {missing[0]}" if missing else f"unknown key {unknown[0]!r}"
        return Pair(index=index, error=f"line {index + 1}: {reason}: give {', '.join(KEYS[:2])} and, if wanted, id")
    return Pair(index=index, **{key: value.get(key) for key in KEYS})
