"""Profiles: what was measured of a target and a drafter on a machine, kept in a file for later processes.

A profile says under which conditions it was measured, and is of use under these alone.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

from paceline.core.files import cache_folder, write_whole
from paceline.engine.knowledge import Knowledge

VERSION = 3
KIND = "paceline profile"
Conditions: TypeAlias = Mapping[str, str]  # what was measured, by what it is: machine, model and so on


class ProfileError(ValueError):
    """A profile that is of no use here, with the reason."""


def profile_folder() -> Path:
    """$PACELINE_PROFILES; by default ``profiles`` in $PACELINE_CACHE, $XDG_CACHE_HOME/paceline or ~/.cache/paceline."""
    own = os.environ.get("PACELINE_PROFILES")
    return Path(own) if own else cache_folder("profiles")


def profile_path(conditions: Conditions) -> Path:
    """Where the profile of these conditions is by default."""
    digest = hashlib.sha256(json.dumps(dict(conditions), sort_keys=True).encode()).hexdigest()
    return profile_folder() / f"{digest[:24]}.json"


def write_profile(path: Path, conditions: Conditions, knowledge: Knowledge) -> None:
    """Write what is known to ``path``, whole or not at all. Raises OSError where that cannot be written."""
    record = {"kind": KIND, "version": VERSION, "conditions": dict(conditions), "knowledge": knowledge.as_record()}
    write_whole(path, json.dumps(record, indent=1) + "\n")


def read_profile(path: Path, conditions: Conditions, knowledge: Knowledge) -> None:
    """Let ``knowledge`` know what the profile at ``path`` says.

    Raises ProfileError, and changes nothing, for a file that cannot be read, and for a profile of other conditions.
    """
    record = _read(path)
    if record.get("version") != VERSION:
        raise ProfileError(f"{path} has version {record.get('version')!r} of the format, and this is {VERSION}")
    found = record.get("conditions")
    there = cast("dict[object, object]", found) if isinstance(found, dict) else {}
    other = [
        f"another {name} (there {there.get(name)}, here {value})"
        for name, value in conditions.items()
        if there.get(name) != value
    ]
    if other:
        raise ProfileError(f"{path} was measured with {', '.join(other)}")
    try:
        knowledge.load(record.get("knowledge") or {})
    except ValueError as error:
        raise ProfileError(f"{path} is damaged: {error}") from error


def is_profile(path: Path) -> bool:
    """Whether ``path`` is a profile, of whatever conditions."""
    try:
        _read(path)
    except ProfileError:
        return False
    return True


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ProfileError(f"{path} is damaged: {error}") from error
    if not isinstance(record, dict) or cast("dict[str, Any]", record).get("kind") != KIND:
        raise ProfileError(f"{path} is no profile")
    return cast("dict[str, Any]", record)
