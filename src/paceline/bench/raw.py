"""Files of raw figures: one JSON object per line, each whole and written at once.

Every line has a kind and the fingerprint of its run. A line of kind "run" describes the conditions of that run; the
other kinds belong to whoever measures (paceline bench: bench/sweep; a study: its own file).
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, final

Record: TypeAlias = Mapping[str, Any]
RUN, CELL, CHOICE, HEAD_TO_HEAD, ACCEPTANCE = "run", "cell", "choice", "head-to-head", "acceptance"
PEER, FAILURE = "peer", "failure"
FORMER_KEYS = {"duel": "pair", "duels": "pairs", "own": "ours", "together": "interleaved"}  # as older files have them
FORMER_KINDS = {"duel": HEAD_TO_HEAD}


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


def _renamed(record: dict[str, Any]) -> dict[str, Any]:
    """A record in today's words."""
    renamed = {FORMER_KEYS.get(name, name): value for name, value in record.items()}
    if renamed.get("kind") in FORMER_KINDS:
        renamed["kind"] = FORMER_KINDS[renamed["kind"]]
    return renamed


def read_records(path: Path) -> list[Record]:
    """Every whole line, in today's words; what an interruption tore off is left out.

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
            record = json.loads(line, object_hook=_renamed)
        except ValueError:  # torn; the next line begins anew
            continue
        if not isinstance(record, dict) or not {"kind", "run"} <= record.keys():
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

    def has(self, identity: Record) -> bool:
        """Whether there is a record with these fields whose control held."""
        return any(identity.items() <= record.items() and not record.get("void") for record in self.records)

    def begin(self, conditions: Record, notes: Callable[[], Record]) -> str:
        """The fingerprint of the run of these conditions, which is written with its notes if it is not there."""
        run = fingerprint(conditions)
        if not any(record["kind"] == RUN and record["run"] == run for record in self.records):
            self.append({"kind": RUN, "run": run, "conditions": conditions, "notes": notes()})
        return run
