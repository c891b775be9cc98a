"""Files of raw figures: one JSON object per line, each whole and written at once. Knows nothing of what they mean.

A line of kind "run" says under what conditions the lines of kind "cell" and "duel" with the same ``run`` were taken;
one of kind "choice" says why its duels have the sides they have; one of kind "peer" which version of a peer took part,
or why none did; one of kind "failure" what could not be timed; one of kind "contest" compares verifiers; those of kind
"axis", "ragged", "prefill" and "first" say how steps and prompts scale, one of kind "device" what a GPU does,
one of kind "options" what sampling options add to a step, one of kind "resume" what early exits gain by resuming, one
of kind "batched" what rows lose that do not advance alone.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, final

Record: TypeAlias = Mapping[str, Any]
RUN, CELL, CHOICE, DUEL, CONTEST = "run", "cell", "choice", "duel", "contest"
PEER, FAILURE = "peer", "failure"
AXIS, RAGGED, PREFILL, FIRST, DEVICE = "axis", "ragged", "prefill", "first", "device"
OPTIONS = "options"
RESUME, BATCHED = "resume", "batched"
STUDIES = (RESUME, BATCHED)
KINDS = (RUN, CELL, CHOICE, DUEL, CONTEST, PEER, FAILURE, AXIS, RAGGED, PREFILL, FIRST, DEVICE, OPTIONS, *STUDIES)


def fingerprint(conditions: Record) -> str:
    """A short name of ``conditions``: equal names, equal conditions."""
    return hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()[:16]


def hash_model(folder: Path) -> str:
    """A hash of what a model directory computes with: its configuration, weights and tokenizer, by content."""
    names = ("config.json", "tokenizer.json")
    files = sorted(path for path in folder.iterdir() if path.name in names or path.suffix == ".safetensors")
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            total.update(f"{path.name}:{hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()


def read_records(path: Path) -> list[Record]:
    """Every whole line; what an interruption tore off is left out.

    Raises ValueError for a file that cannot be read or holds anything else.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; give a file of raw figures that paceline bench wrote") from error
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            record = json.loads(line)
        except ValueError:  # torn; the next line begins anew
            continue
        if not isinstance(record, dict) or record.get("kind") not in KINDS or "run" not in record:
            raise ValueError(f"{path}, line {number}: no line of a benchmark; give a file that paceline bench wrote")
        records.append(record)
    return records


@final
class RawFile:
    """Appends records to a file, each in one write. Raises ValueError where the file cannot be written or read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.parent.is_dir():
            raise ValueError(f"{path}: no such directory: {path.parent}; create it, or give another")
        self.records = read_records(path) if path.exists() else []
        torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        self._lead = b"\n" if torn else b""

    def append(self, *records: Record) -> None:
        """Write records behind the others, at once; they are on the disk when this returns."""
        data = self._lead + b"".join(json.dumps(record, allow_nan=False).encode() + b"\n" for record in records)
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            if os.write(file, data) != len(data):
                raise OSError(f"cannot write {self.path}: the disk is full; run the same command again once it is not")
            os.fsync(file)
        finally:
            os.close(file)
        self._lead = b""
        self.records.extend(records)
