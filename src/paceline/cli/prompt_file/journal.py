"""A file of results, one JSON line per prompt in their order, that survives being interrupted at any moment.

Results that come before their turn wait in a journal beside the file. Both files only grow, line by line. Knows nothing
of models; a line is a mapping with at least ``index``, ``run`` and ``prompt_hash``.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, final

from paceline.text.valid_json import to_json

try:
    import fcntl
except ImportError:  # not on Windows, where two runs must not write one file at once
    fcntl = None

Line: TypeAlias = Mapping[str, Any]
# What determines a run's outputs, as its fingerprint names it.
PARTS = ("another model, backend or precision", "other sampling options", "another verifier, drafter or draft length")
STDOUT = Path("-")
WAY_OUT = "give another --output, or --overwrite to start over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What earlier runs have left."""

    num_written: int = 0  # prompts whose lines are in the file
    size: int = 0  # bytes of these lines
    failed: Mapping[int, str] = field(default_factory=dict[int, str])  # why those among them failed that did
    waiting: dict[int, Line] = field(default_factory=dict[int, Line])  # finished ones of the journal


def journal_of(path: Path) -> Path:
    """Where results wait for their turn in ``path``."""
    return path.with_name(f"{path.name}.waiting")


def check_writable(path: Path, *, option: str = "--output") -> None:
    """Raise ValueError unless ``path`` is, or can become, a file that can be written. Creates nothing."""
    if path.exists() and not path.is_file():
        other = ", or - for standard output" if option == "--output" else ""
        raise ValueError(f"{option} {path}: no plain file; give another name{other}")
    if not path.exists() and not path.parent.is_dir():
        raise ValueError(f"{option} {path}: no such directory: {path.parent}; create it, or give another")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{option} {path}: not writable; give another file")


def read_finished(path: Path, *, run: str, digests: Sequence[str]) -> Finished:
    """What is done of the run ``run`` over the prompts of ``digests``; writes nothing.

    Raises ValueError if the file holds anything else than the first lines of this run.
    """
    failed: dict[int, str] = {}
    size = num_written = 0
    for text in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        if not text.endswith(b"\n"):  # a torn last line is written again
            break
        line = _parse(text)
        if line is None or line.get("index") != num_written:
            raise ValueError(f"{path}, line {num_written + 1}: not a result of this command: {WAY_OUT}")
        _check(line, path, run=run, digests=digests)
        if "error" in line:
            failed[num_written] = str(line["error"])
        size, num_written = size + len(text), num_written + 1
    waiting: dict[int, Line] = {}
    journal = journal_of(path)
    for text in journal.read_bytes().splitlines() if journal.exists() else []:
        line = _parse(text)
        if line is None:  # torn when a run was killed
            continue
        _check(line, journal, run=run, digests=digests)
        if line["index"] >= num_written and not is_cancelled(line):
            waiting[line["index"]] = line
    return Finished(num_written=num_written, size=size, failed=failed, waiting=waiting)


def is_cancelled(line: Line) -> bool:
    """Whether a text of the line was interrupted, so that it has to be generated again."""
    return any(sample["finish_reason"] == "cancelled" for sample in line.get("samples", ()))


@final
class ResultFile:
    """Takes lines in any order and writes them in theirs. Raises OSError, leaving whole lines, where it cannot.

    Opening it cuts off what ``finished`` does not count: a torn line, or all with Finished(). Only one process can
    have it open.
    """

    def __init__(self, path: Path, *, finished: Finished) -> None:
        self.path, self._journal_path = path, journal_of(path)
        self._next, self._size, self._waiting = finished.num_written, finished.size, dict(finished.waiting)
        self._journal = os.open(self._journal_path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            self._lock()
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        except BaseException:
            os.close(self._journal)
            raise
        os.ftruncate(self._file, self._size)
        if not finished.num_written and not finished.waiting:
            os.ftruncate(self._journal, 0)
        self._advance()

    def put(self, line: Line) -> None:
        """A finished prompt: into the file if it is its turn, else into the journal until it is."""
        self._waiting[line["index"]] = line
        if line["index"] != self._next:
            self._append(line)
        self._advance()

    def put_cancelled(self, line: Line) -> None:
        """An interrupted prompt: into the journal, for whoever wants its partial text."""
        self._append(line)

    def close(self, *, complete: bool) -> None:
        """Let go of the files; with ``complete`` the journal has done its work."""
        os.close(self._file)
        os.close(self._journal)
        if complete:
            self._journal_path.unlink(missing_ok=True)

    def _advance(self) -> None:
        while self._next in self._waiting:
            data = _bytes(self._waiting[self._next])
            try:
                _write(self._file, data)
            except OSError as error:
                os.ftruncate(self._file, self._size)
                raise self._explain(self.path, error) from error
            self._size += len(data)
            del self._waiting[self._next]
            self._next += 1

    def _append(self, line: Line) -> None:
        try:
            _write(self._journal, b"\n" + _bytes(line))  # what an interruption may have torn off ends here
        except OSError as error:
            raise self._explain(self._journal_path, error) from error

    def _explain(self, path: Path, error: OSError) -> OSError:
        return OSError(
            f"cannot write {path}: {error.strerror}; {self._next} prompts are in {self.path}: run the same command "
            "again once there is room"
        )

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"{self.path}: another run is writing it: wait for it, or give another --output"
            ) from error


def _differences(one: str, other: str) -> str:
    """What differs between two fingerprints, in words."""
    pairs = list(zip(PARTS, one.split("-"), other.split("-"), strict=False))
    found = [part for part, first, second in pairs if first != second]
    return " and ".join(found) if found and one.count("-") == other.count("-") else "other options"


def _check(line: Line, path: Path, *, run: str, digests: Sequence[str]) -> None:
    """Raise ValueError unless ``line`` is of this run and of the prompt that now has its place."""
    index, made_by = line.get("index"), line.get("run")
    if not isinstance(index, int) or not isinstance(made_by, str):
        raise ValueError(f"{path}: not a file of results: {WAY_OUT}")
    if made_by != run:
        raise ValueError(f"{path} was written with {_differences(made_by, run)}: {WAY_OUT}")
    if index >= len(digests):
        raise ValueError(f"{path} has a result for line {index + 1}, but there are {len(digests)} prompts: {WAY_OUT}")
    if line.get("prompt_hash") != digests[index]:
        raise ValueError(f"{path} was written for another prompt in line {index + 1}: {WAY_OUT}")


def _parse(text: bytes) -> Line | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None


def _bytes(line: Line) -> bytes:
    return to_json(line).encode() + b"\n"


def _write(file: int, data: bytes) -> None:
    """All of ``data``, past any buffer of this process."""
    while data:
        data = data[os.write(file, data) :]
