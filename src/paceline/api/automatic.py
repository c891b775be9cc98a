"""The drafters of ``drafter="auto"``: what there is for a target without being asked for."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from paceline.api.loading import Loaded
from paceline.core.context import reads_source, token_source
from paceline.models.directory import is_head

AUTO = "auto"
COPIES = ("copy", "suffix")  # need nothing but text, and cost next to nothing where there is nothing to copy
COPIES_OF_OUTPUTS = ("suffix",)  # where an encoder reads no tokens that could be copied
T = TypeVar("T")


def with_automatic(drafters: Sequence[T], target: Loaded) -> list[T | str]:
    """``drafters`` with "auto" replaced by what it stands for: copies, and draft heads in the target's directory."""
    found: list[T | str] = []
    reads = target.lm.context_inputs
    copies = COPIES if token_source(reads) is not None or not reads_source(reads) else COPIES_OF_OUTPUTS
    for one in drafters:
        found += [*copies, *_own_heads(target)] if isinstance(one, str) and one == AUTO else [one]
    return found


def _own_heads(target: Loaded) -> list[str]:
    """Directories of draft heads that lie in that of the target, sorted."""
    folder = Path(target.name)
    if not folder.is_dir():
        return []
    return [str(path) for path in sorted(folder.iterdir()) if path.is_dir() and is_head(path)]
