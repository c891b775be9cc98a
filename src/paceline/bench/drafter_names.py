"""Drafters of cells by what a user writes: a name, options, stages, a directory, "auto", or several. Builds none."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from paceline.api.automatic import AUTO
from paceline.api.drafter_like import check_drafter
from paceline.api.named import name_of
from paceline.api.stages import is_made_of_drafters, read_drafter_parts
from paceline.bench.trees import MODEL
from paceline.drafters import DRAFTERS
from paceline.models.directory import check_path

JOINT: Final = re.compile(r"(?<!\s)\+(?!\s)")  # between the drafters of a list; with spaces around it is a cascade's

WITH_PLUS: Final = re.compile(r"\bmodel:([^\s=]*\+\S*)")


def chooses_lengths(text: str, known: Collection[str]) -> bool:
    """Whether what ``text`` names chooses its draft lengths itself, in every step: "auto" and lists do."""
    return text == AUTO or (JOINT.search(text) is not None and len(drafters_of(text, known)) > 1)


def drafters_of(text: str, known: Collection[str]) -> list[str]:
    """The drafters that ``text`` lists, such as "copy+suffix:max_tokens=0"; one if it is no list.

    ``known`` are names of drafters and heads, which may contain a plus; others may be what ``paceline.generate`` takes
    as text, but for "none". A plus that belongs to a directory is none between drafters. Raises ValueError for an
    unknown name, for options that its drafter does not have, for a directory without a model, and for a draft length
    among the options.
    """
    parts = JOINT.split(text)
    found = _listed(parts, known)
    if found is None:
        for part in [text] if Path(text).is_dir() else parts:
            _check(part, known)
    return found or parts


def _listed(parts: Sequence[str], known: Collection[str]) -> list[str] | None:
    """``parts`` as drafters, of which some are of several parts, the longest first; None if they are none."""
    if not parts:
        return []
    for end in range(len(parts), 0, -1):
        first = "+".join(parts[:end])
        if _is_one(first, known):
            rest = _listed(parts[end:], known)
            if rest is not None:
                return [first, *rest]
    return None


def _is_one(text: str, known: Collection[str]) -> bool:
    try:
        _check(text, known)
    except ValueError:
        return False
    return True


def _check(text: str, known: Collection[str]) -> None:
    """Raise ValueError for what is no drafter."""
    if text in known or text == AUTO:
        return
    for path in WITH_PLUS.findall(text):  # which no id of the Hub has
        check_path(Path(path))
    if is_made_of_drafters(text):
        count = read_drafter_parts(text).num_draft_tokens
        if count is not None:
            raise ValueError(f"--drafter {text}: num_speculative_tokens={count}: leave it out; --k gives draft lengths")
    elif name_of(text) not in DRAFTERS and Path(text).is_dir():
        check_path(text)
    elif text == MODEL or name_of(text) == "none" or not check_drafter(text):
        raise ValueError(
            f"--drafter {text}: known here are {', '.join([*known, AUTO])}, and lists such as copy+suffix; model "
            "needs --draft DIR; a draft head is given by its directory, another draft model by model:DIR, yours by "
            "FILE.py:NAME"
        )
