"""Sets of sub-layers to skip, as ``paceline skip-search`` writes them: one JSON file per model, beside its weights.

A set belongs to one target, whose fingerprint is saved; it is refused for any other.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from paceline.api.loading import Loaded
from paceline.core.files import cache_folder, write_whole
from paceline.models.fingerprint import Fingerprint, fingerprint
from paceline.models.native.decoder import DecoderLM
from paceline.models.sublayers import SkippedSublayers

FILE_NAME = "paceline_layer_skip.json"
KIND, VERSION = "paceline_layer_skip", 1
AGAIN = "search again with `paceline skip-search`"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipSet:
    """A set, the draft length that it was searched with, and what was measured of it, for people to read."""

    sublayers: SkippedSublayers
    num_draft_tokens: int
    measured: Mapping[str, object]


def native_target(target: Loaded) -> DecoderLM:
    """The target's native decoder. Raises ValueError if transformers runs it."""
    if not isinstance(target.lm, DecoderLM):
        raise ValueError(
            f"the drafter 'layer_skip' leaves out sub-layers of native models, and {target.name} is run by "
            "transformers: load it with backend='native', or give another drafter"
        )
    return target.lm


def set_path(target: Loaded) -> Path:
    """Where the set of ``target`` is kept: in its directory; in the cache where that is not writable or there is none.

    The cache is ``layer_skip`` in $PACELINE_CACHE, by default $XDG_CACHE_HOME/paceline or ~/.cache/paceline.
    """
    folder = Path(target.name)
    beside = folder / FILE_NAME
    if folder.is_dir() and (beside.is_file() or os.access(folder, os.W_OK)):
        return beside
    fields = json.dumps(fingerprint(native_target(target)).fields(), sort_keys=True)
    return cache_folder("layer_skip") / f"{hashlib.sha256(fields.encode()).hexdigest()[:24]}.json"


def write_set(path: Path, found: SkipSet, target: Loaded) -> None:
    """Write ``found`` to ``path``, whole or not at all. Raises OSError where that cannot be written."""
    record = {
        "kind": KIND,
        "version": VERSION,
        "target": {"name": target.name, "fingerprint": fingerprint(native_target(target)).fields()},
        "attention": sorted(found.sublayers.attention),
        "mlp": sorted(found.sublayers.mlp),
        "num_draft_tokens": found.num_draft_tokens,
        "measured": dict(found.measured),
    }
    write_whole(path, json.dumps(record, indent=1) + "\n")


def read_set(path: Path, target: Loaded) -> SkipSet:
    """The set in ``path``. Raises ValueError for a file that is missing, no set, or that of another target."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; {AGAIN}, or give attention=LAYERS,mlp=LAYERS") from None
    except ValueError as error:
        raise ValueError(f"{path} is no set of sub-layers: {error}; {AGAIN}") from error
    if not isinstance(record, dict) or record.get("kind") != KIND:
        raise ValueError(f"{path} is no set of sub-layers: it has no kind {KIND!r}; {AGAIN}")
    if record.get("version") != VERSION:
        raise ValueError(f"{path} has version {record.get('version')!r} of the format, and this is {VERSION}; {AGAIN}")
    given = cast("dict[str, Any]", record)
    try:
        fields = given["target"]["fingerprint"]
        made_for = Fingerprint(sizes=fields["sizes"], kept=fields["kept"], matrices=fields["matrices"])
        attention, mlp = (frozenset(map(int, given[part])) for part in ("attention", "mlp"))
        count = int(given["num_draft_tokens"])
        name, measured = str(given["target"]["name"]), dict(given["measured"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no set of sub-layers: {error!r}; {AGAIN}") from error
    lm = native_target(target)
    if not made_for.matches(fingerprint(lm)):
        raise ValueError(f"{path} was found for another model ({name}) than {target.name}; {AGAIN}")
    sublayers = SkippedSublayers(attention=attention, mlp=mlp)
    sublayers.check(lm.num_layers)
    return SkipSet(sublayers=sublayers, num_draft_tokens=count, measured=measured)
