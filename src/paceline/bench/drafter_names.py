"""Drafters of cells by what a user writes: a name, one with options, "auto", or several. Builds none."""

from collections.abc import Collection
from typing import Final

from paceline.api.automatic import AUTO
from paceline.api.drafter_files import is_drafter_file, read_drafter_file
from paceline.api.named import name_of, read_named
from paceline.drafters import DRAFTERS

JOINT: Final = "+"  # between the drafters of a list


def chooses_lengths(text: str) -> bool:
    """Whether what ``text`` names chooses its draft lengths itself, in every step: "auto" and lists do."""
    return text == AUTO or (JOINT in text and not is_drafter_file(text))


def drafters_of(text: str, known: Collection[str]) -> list[str]:
    """The drafters that ``text`` lists, such as "copy+suffix:max_tokens=0"; one if it is no list.

    ``known`` are names of drafters; those that are registered may have options, and "auto" is known always. Raises
    ValueError for an unknown name, and for options that its drafter does not have.
    """
    if text in known or text == AUTO or (is_drafter_file(text) and read_drafter_file(text)):
        return [text]
    parts = text.split(JOINT)
    for part in parts:
        if part in known or part == AUTO:
            continue
        if name_of(part) not in known or name_of(part) not in DRAFTERS:
            raise ValueError(
                f"--drafter {text}: known here are {', '.join([*known, AUTO])}, and lists such as copy+suffix; model "
                "needs --draft DIR; a draft head is given by its directory, yours by FILE.py:NAME"
            )
        read_named(DRAFTERS, part)
    return parts
