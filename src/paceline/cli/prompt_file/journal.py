"""A file of results, one JSON line per prompt in their order, that survives being interrupted at any moment.

Results that come before their turn wait in a journal beside the file. The file only grows, line by line, and so does
the journal until nothing waits. Knows nothing of models; a line is a mapping with at least ``index``, ``run`` and
``prompt_hash``.

Every line is given to the system when it is put, so that what ends this process loses none. What ends the machine loses
those of the last SYNC_SECONDS, which are then generated again.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
SYNC_SECONDS = 5.0
JOURNAL_BYTES = 1 << 20  # of lines that no longer wait, from which the journal is emptied


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a line stands in the file; in the journal it stands whole. ``read`` has its number as well, and returns None
    for what was not written by this. ``parts`` is what determines a run's outputs, as its fingerprint names it.
    """

    write: Callable[[Line], Line] = lambda line: line
    read: Callable[[Line, int], Line | None] = lambda line, _: line
    way_out: str = WAY_OUT
    parts: tuple[str, str, str] = PARTS


PLAIN = Layout()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What earlier runs have left."""

    num_written: int = 0  # prompts whose lines are in the file, or in that of errors
    sizes: tuple[int, ...] = (0, 0)  # bytes of these lines in each
    failed: Mapping[int, str] = field(default_factory=dict[int, str])  # why those among them failed that did
    waiting: dict[int, Line] = field(default_factory=dict[int, Line])  # finished ones of the journal
    found: tuple[int, ...] | None = None  # bytes of all files when this was read; None if they are overwritten


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


def read_finished(
    path: Path, *, run: str, digests: Sequence[str], errors: Path | None = None, layout: Layout = PLAIN
) -> Finished:
    """What is done of the run ``run`` over the prompts of ``digests``; writes nothing. Lines with errors may stand in a
    file of their own.

    Raises ValueError if the files hold anything else than the first lines of this run.
    """
    paths, failed, num_written = _files(path, errors), dict[int, str](), 0
    found = _found(path, errors)
    rest = [_whole_lines(one) for one in paths]
    heads, sizes = [next(lines, None) for lines in rest], [0] * len(paths)
    while any(heads):
        read = [_read(text, one, num_written, layout) for text, one in zip(heads, paths, strict=True)]
        wanted = digests[num_written] if num_written < len(digests) else None
        at = next((at for at, line in enumerate(read) if line is not None and line["prompt_hash"] == wanted), None)
        if at is None:  # which is refused, by the name of the file that has one too many
            at = next(at for at, line in enumerate(read) if line is not None)
        line, text = read[at], heads[at]
        assert line is not None and text is not None
        _check(line, paths[at], run=run, digests=digests, layout=layout)
        if "error" in line:
            failed[num_written] = str(line["error"])
        sizes[at] += len(text)
        heads[at], num_written = next(rest[at], None), num_written + 1
    waiting: dict[int, Line] = {}
    journal = journal_of(path)
    for text in _lines(journal):
        line = _parse(text)
        if line is None:  # torn when a run was killed
            continue
        _check(line, journal, run=run, digests=digests, layout=layout)
        if line["index"] >= num_written and not is_cancelled(line):
            waiting[line["index"]] = line
    return Finished(num_written=num_written, sizes=tuple(sizes), failed=failed, waiting=waiting, found=found)


def is_cancelled(line: Line) -> bool:
    """Whether a text of the line was interrupted, so that it has to be generated again."""
    return any(sample["finish_reason"] == "cancelled" for sample in line.get("samples", ()))


@final
class ResultFile:
    """Takes lines in any order and writes them in theirs, those with an error to ``errors`` if it is given. Raises
    OSError, leaving whole lines, where it cannot.

    Opening it cuts off what ``finished`` does not count: a torn line, or all with Finished(). Only one process can
    have it open.
    """

    def __init__(self, path: Path, *, finished: Finished, errors: Path | None = None, layout: Layout = PLAIN) -> None:
        self.path, self._journal_path, self._layout = path, journal_of(path), layout
        self._next, self._waiting = finished.num_written, dict(finished.waiting)
        self._paths, self._sizes = _files(path, errors), list(finished.sizes)
        self._open: list[int] = []
        self._synced = time.monotonic()
        try:
            self._journal = self._take(self._journal_path, os.O_RDWR)
            if finished.found not in (None, _found(path, errors)):
                raise ValueError(f"{path}: another run has written it meanwhile: run the same command again")
            self._data = [self._take(one, os.O_WRONLY) for one in self._paths]
            for file, size in zip(self._data, self._sizes, strict=False):
                os.ftruncate(file, size)
            if not finished.num_written and not finished.waiting:
                os.ftruncate(self._journal, 0)
            self._advance()
        except BaseException:
            for file in self._open:
                os.close(file)
            raise

    @property
    def num_written(self) -> int:
        """Lines that are in the files."""
        return self._next

    def put(self, line: Line) -> None:
        """A finished prompt: into the file if it is its turn, else into the journal until it is."""
        self._waiting[line["index"]] = line
        if line["index"] != self._next:
            self._append(line)
        self._advance()
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self._sync()
        if not self._waiting and os.fstat(self._journal).st_size > JOURNAL_BYTES:
            self._sync()
            os.ftruncate(self._journal, 0)

    def put_cancelled(self, line: Line) -> None:
        """An interrupted prompt: into the journal, for whoever wants its partial text."""
        self._append(line)

    def close(self, *, complete: bool) -> None:
        """Let go of the files; with ``complete`` the journal has done its work."""
        try:
            self._sync()
        finally:
            for file in self._open:
                os.close(file)
        if complete:
            self._journal_path.unlink(missing_ok=True)

    def _take(self, path: Path, mode: int) -> int:
        """Open a file that no other process may write."""
        file = os.open(path, mode | os.O_CREAT | os.O_APPEND, 0o666)
        self._open.append(file)
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            way_out = self._layout.way_out.partition(",")[0]
            raise ValueError(f"{self.path}: another run is writing it: wait for it, or {way_out}") from error
        return file

    def _advance(self) -> None:
        while self._next in self._waiting:
            line = self._waiting[self._next]
            data = _bytes(self._layout.write(line))
            at = len(self._data) - 1 if "error" in line else 0
            try:
                _write(self._data[at], data)
            except OSError as error:
                os.ftruncate(self._data[at], self._sizes[at])
                raise self._explain(self._paths[at], error) from error
            self._sizes[at] += len(data)
            del self._waiting[self._next]
            self._next += 1

    def _append(self, line: Line) -> None:
        try:
            _write(self._journal, b"\n" + _bytes(line))  # what an interruption may have torn off ends here
        except OSError as error:
            raise self._explain(self._journal_path, error) from error

    def _sync(self) -> None:
        """Let what was written outlive the machine. Some systems say only now that there is no room."""
        for file, path in zip((*self._data, self._journal), (*self._paths, self._journal_path), strict=True):
            try:
                os.fsync(file)
            except OSError as error:
                raise self._explain(path, error) from error
        self._synced = time.monotonic()

    def _explain(self, path: Path, error: OSError) -> OSError:
        return OSError(
            f"cannot write {path}: {error.strerror}; {self._next} lines are in {self.path}: run the same command "
            "again once there is room"
        )


def _files(path: Path, errors: Path | None) -> list[Path]:
    return [path] if errors is None else [path, errors]


def _found(path: Path, errors: Path | None) -> tuple[int, ...]:
    """Bytes of all files of a run."""
    every = (*_files(path, errors), journal_of(path))
    return tuple(one.stat().st_size if one.exists() else 0 for one in every)


def _lines(path: Path) -> Iterator[bytes]:
    if path.exists():
        with path.open("rb") as file:
            yield from file


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Those of a file of results; a torn last one is written again."""
    return (text for text in _lines(path) if text.endswith(b"\n"))


def _read(text: bytes | None, path: Path, number: int, layout: Layout) -> Line | None:
    """The line number ``number`` that ``text`` is; None without a text. Raises ValueError for anything else."""
    if text is None:
        return None
    found = _parse(text)
    line = None if found is None else layout.read(found, number)
    if line is None or line.get("index") != number or "prompt_hash" not in line:
        raise ValueError(f"{path}, line {number + 1}: not a result of this command: {layout.way_out}")
    return line


def _differences(one: str, other: str, parts: Sequence[str]) -> str:
    """What differs between two fingerprints, in words."""
    pairs = list(zip(parts, one.split("-"), other.split("-"), strict=False))
    found = [part for part, first, second in pairs if first != second]
    return " and ".join(found) if found and one.count("-") == other.count("-") else "other options"


def _check(line: Line, path: Path, *, run: str, digests: Sequence[str], layout: Layout) -> None:
    """Raise ValueError unless ``line`` is of this run and of the prompt that now has its place."""
    index, made_by, way_out = line.get("index"), line.get("run"), layout.way_out
    if not isinstance(index, int) or not isinstance(made_by, str):
        raise ValueError(f"{path}: not a file of results: {way_out}")
    if made_by != run:
        raise ValueError(f"{path} was written with {_differences(made_by, run, layout.parts)}: {way_out}")
    if index >= len(digests):
        raise ValueError(f"{path} has a result for line {index + 1}, but there are {len(digests)} prompts: {way_out}")
    if line.get("prompt_hash") != digests[index]:
        raise ValueError(f"{path} was written for another prompt in line {index + 1}: {way_out}")


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
