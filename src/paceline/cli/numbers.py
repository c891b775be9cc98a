"""Lists of numbers as they are written on the command line."""

import math
import re
from collections.abc import Sequence


def read_numbers(text: str, *, option: str, such_as: str) -> list[float]:
    """Numbers of at least 0 such as "0,0.8". Raises ValueError, naming ``option``, for anything else."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= value < math.inf for value in found):
        raise ValueError(f"{option} {text}: give numbers of at least 0, such as {such_as}")
    return found


def read_counts(text: str, *, option: str) -> list[int]:
    """Counts of at least 1 such as "1,2,4" or "1-8". Raises ValueError, naming ``option``, for anything else."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        first, last = (0, 0) if match is None else (int(match[1]), int(match[2] or match[1]))
        if first < 1 or last < first:
            raise ValueError(f"{option} {text}: give counts of at least 1, such as 1,2,4 or 1-8")
        found.extend(range(first, last + 1))
    return list(dict.fromkeys(found))


def read_peer_counts(texts: Sequence[str]) -> dict[str, list[int]]:
    """Draft lengths by peer or mode, such as "vllm=3,5" or "vllm-lookup=none". Raises ValueError for anything else."""
    found: dict[str, list[int]] = {}
    for text in texts:
        name, equals, counts = text.partition("=")
        if not name or not equals:
            raise ValueError(f"--peer-k {text}: give a peer or one of its modes, such as vllm=3,5 or vllm-lookup=none")
        found[name] = [] if counts == "none" else read_counts(counts, option=f"--peer-k {name}")
    return found
