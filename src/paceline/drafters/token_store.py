"""Finished outputs that later requests may copy from, in memory and, if wanted, in a file that survives a kill.

A file is a header and records that are only appended; each has its length and a checksum, so that one that was torn
when a process was killed is cut off at the next opening.
"""

import json
import logging
import os
import struct
import zlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import final

from filelock import FileLock, Timeout

from paceline.core.token_index import PlainTokenIndex, TokenIndex
from paceline.kernels.cpu.compile import KernelError
from paceline.kernels.cpu.token_index import KernelTokenIndex

logger = logging.getLogger("paceline")

MAGIC = b"PACELINE-OUTPUTS\n"
VERSION = 1
RECORD = struct.Struct("<II")  # tokens of a record, and their checksum
REWRITE = 2  # a file with so many times the tokens that are kept is written anew


class TokenStoreError(ValueError):
    """A file that is no store of this vocabulary, or that another process writes to."""


def new_index() -> TokenIndex:
    """The fastest index there is: in plain Python where the kernel library cannot be built."""
    try:
        return KernelTokenIndex()
    except KernelError:
        return PlainTokenIndex()


@final
class TokenStore:
    """The newest outputs, at most ``max_tokens`` tokens of them and ``max_outputs`` (None: any number); the oldest are
    forgotten first.

    ``path`` (None: memory alone) is opened, or made, for outputs in ``vocabulary``, which names the target's tokens.
    Raises TokenStoreError for a file of another vocabulary, a foreign one, and one that another process has open.
    """

    def __init__(self, *, path: Path | None, vocabulary: str, max_tokens: int, max_outputs: int | None = None) -> None:
        self.index, self.path = new_index(), path
        self._max_tokens, self._max_outputs, self._vocabulary = max_tokens, max_outputs, vocabulary
        self._file: int | None = None
        self._num_written = 0  # tokens in the file
        if path is not None:
            self._lock = FileLock(f"{path}.lock")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._lock.acquire(timeout=0)
                self._file = self._open(path)
            except Timeout as error:
                raise TokenStoreError(
                    f"{path} is in use by another process: give this one a store of its own, or end the other"
                ) from error
            except OSError as error:
                raise TokenStoreError(f"{path} cannot be opened: {error}") from error

    def append(self, tokens: Sequence[int]) -> None:
        """Add an output. What cannot be written, on a full disk say, stays in memory; that is logged once."""
        if not tokens:
            return
        self._add(tokens)
        if self._file is None:
            return
        try:
            self._write(tokens)
        except OSError as error:
            logger.warning("%s: outputs are no longer written to it, but kept in memory: %s", self.path, error)
            self.close()

    def close(self) -> None:
        """Close the file, if there is one; the outputs stay in memory."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            self._lock.release()

    def _add(self, tokens: Sequence[int]) -> None:
        self.index.append(tokens)
        self.index.end_sequence()
        self.index.keep(self._max_tokens, self._max_outputs)

    def _open(self, path: Path) -> int:
        """Read what is whole, cut off what is not, and open for appending."""
        header = _header(self._vocabulary)
        if not path.exists() or path.stat().st_size == 0:
            _replace(path, header, [])
        content = memoryview(path.read_bytes())
        if bytes(content[: len(MAGIC)]) != MAGIC:
            raise TokenStoreError(f"{path} is no store of outputs: give another name, or remove the file")
        if bytes(content[: len(header)]) != header:
            found = bytes(content[len(MAGIC) :]).split(b"\n", 1)[0].decode("utf-8", "replace")
            raise TokenStoreError(
                f"{path} is a store of another vocabulary or version ({found}), and this is "
                f"{header[len(MAGIC) :].decode().strip()}: give each model a store of its own"
            )
        end = len(header)
        for tokens, after in _records(content, end):
            self.index.append(tokens)
            self.index.end_sequence()
            self._num_written, end = self._num_written + len(tokens), after
        self.index.keep(self._max_tokens, self._max_outputs)
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        if end < len(content):
            logger.warning(
                "%s: %d bytes of an output that was not wholly written are cut off", path, len(content) - end
            )
            os.ftruncate(file, end)
        return file

    def _write(self, tokens: Sequence[int]) -> None:
        assert self._file is not None and self.path is not None
        size = os.fstat(self._file).st_size
        record = _record(array("i", tokens))
        if os.write(self._file, record) < len(record):
            os.ftruncate(self._file, size)
            raise OSError("no space left")
        self._num_written += len(tokens)
        if self._num_written > REWRITE * self._max_tokens:
            self._rewrite(self.path)

    def _rewrite(self, path: Path) -> None:
        """Drop the oldest outputs from the file."""
        header = _header(self._vocabulary)
        kept: list[array[int]] = []
        total = 0
        for tokens in reversed([tokens for tokens, _ in _records(memoryview(path.read_bytes()), len(header))]):
            if total + len(tokens) > self._max_tokens or len(kept) == self._max_outputs:
                break
            total += len(tokens)
            kept.append(tokens)
        _replace(path, header, kept[::-1])
        assert self._file is not None
        os.close(self._file)
        self._file, self._num_written = os.open(path, os.O_WRONLY | os.O_APPEND), total


def _header(vocabulary: str) -> bytes:
    return MAGIC + json.dumps({"version": VERSION, "vocabulary": vocabulary}).encode() + b"\n"


def _record(tokens: "array[int]") -> bytes:
    content = tokens.tobytes()
    return RECORD.pack(len(tokens), zlib.crc32(content)) + content


def _records(content: memoryview, start: int) -> Iterator[tuple["array[int]", int]]:
    """The whole records from ``start`` on, each with where it ends."""
    while start + RECORD.size <= len(content):
        count, checksum = RECORD.unpack_from(content, start)
        begin, end = start + RECORD.size, start + RECORD.size + 4 * count
        if end > len(content) or zlib.crc32(content[begin:end]) != checksum:
            return
        tokens = array("i")
        tokens.frombytes(content[begin:end])
        yield tokens, end
        start = end


def _replace(path: Path, header: bytes, records: Sequence["array[int]"]) -> None:
    """Write a file whole, or not at all."""
    made = path.with_name(f"{path.name}.part")
    made.write_bytes(header + b"".join(map(_record, records)))
    os.replace(made, path)
