"""The cache of tokenised documents: written atomically, read by memory map.

N tokens of a split, D documents.
"""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, final

import numpy as np

from paceline.core.files import cache_folder
from paceline.train.data.manifest import FileRecord, Split
from paceline.train.data.sources.documents import Tokens

try:
    import fcntl
except ImportError:  # Windows, where processes may do the same work twice
    fcntl = None

META = "meta.json"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenisedSplit:
    """The concatenated documents of one split of one source. The first token of a document is never learned."""

    tokens: np.ndarray  # [N] memory map
    learned: np.ndarray | None  # [N] bool, memory map; None: all but the first of each document
    ends: np.ndarray  # [D] int64: end of each document
    origin: np.ndarray  # [D] int64: number of each document in its file
    source: np.ndarray | None = None  # [D] int64: tokens at its beginning that an encoder reads; None: there are none


@final
class TokenWriter:
    """Writes documents in order into ``folder``, which is complete only after ``finish``. A context manager."""

    def __init__(self, folder: Path, *, dtype: np.dtype) -> None:
        self._folder, self._dtype = folder, dtype
        self._files: dict[Split, tuple[IO[bytes], IO[bytes]]] = {}
        self._ends: dict[Split, list[int]] = {}
        self._origin: dict[Split, list[int]] = {}
        self._source: dict[Split, list[int]] = {}
        self._masked: set[Split] = set()

    def __enter__(self) -> "TokenWriter":
        return self

    def __exit__(self, *_: object) -> None:
        for files in self._files.values():
            for file in files:
                with suppress(OSError):  # on a full disk, the first error is the one to report
                    file.close()

    def put(self, split: Split, document: Tokens) -> int:
        """Append a document of at least one token; returns how many of its tokens are learned."""
        if split not in self._files:
            self._files[split] = (self._open(split, "tokens"), self._open(split, "learned"))
            self._ends[split], self._origin[split], self._source[split] = [], [], []
        learned = np.ones(len(document.tokens), dtype=bool) if document.learned is None else document.learned.copy()
        learned[0] = False
        tokens_file, learned_file = self._files[split]
        tokens_file.write(np.ascontiguousarray(document.tokens, dtype=self._dtype).data)
        learned_file.write(learned.data)
        ends = self._ends[split]
        ends.append((ends[-1] if ends else 0) + len(document.tokens))
        self._origin[split].append(document.origin)
        self._source[split].append(document.num_source)
        if document.learned is not None:
            self._masked.add(split)
        return int(learned.sum())

    def finish(self, records: list[FileRecord]) -> None:
        """Flush, and write indices and metadata."""
        for split, files in self._files.items():
            for file in files:
                file.flush()
                os.fsync(file.fileno())
                file.close()
            np.save(self._folder / f"{split.value}.ends.npy", np.asarray(self._ends[split], dtype=np.int64))
            np.save(self._folder / f"{split.value}.origin.npy", np.asarray(self._origin[split], dtype=np.int64))
            if any(self._source[split]):
                np.save(self._folder / f"{split.value}.source.npy", np.asarray(self._source[split], dtype=np.int64))
            if split not in self._masked:
                (self._folder / f"{split.value}.learned").unlink()
        meta = {"dtype": str(self._dtype), "files": [asdict(record) for record in records]}
        (self._folder / META).write_text(json.dumps(meta), encoding="utf-8")

    def _open(self, split: Split, what: str) -> IO[bytes]:
        return (self._folder / f"{split.value}.{what}").open("wb")


def read_records(folder: Path) -> list[FileRecord]:
    """The records of the files of a tokenised source."""
    return [FileRecord(**record) for record in json.loads((folder / META).read_text(encoding="utf-8"))["files"]]


def open_split(folder: Path, split: Split) -> TokenisedSplit | None:
    """The documents of a split; None if there are none."""
    base = folder / split.value
    if not base.with_suffix(".ends.npy").exists():
        return None
    dtype = np.dtype(json.loads((folder / META).read_text(encoding="utf-8"))["dtype"])
    masked, source = base.with_suffix(".learned").exists(), base.with_suffix(".source.npy")
    return TokenisedSplit(
        tokens=np.memmap(base.with_suffix(".tokens"), dtype=dtype, mode="r"),
        learned=np.memmap(base.with_suffix(".learned"), dtype=bool, mode="r") if masked else None,
        ends=np.load(base.with_suffix(".ends.npy"), allow_pickle=False),
        origin=np.load(base.with_suffix(".origin.npy"), allow_pickle=False),
        source=np.load(source, allow_pickle=False) if source.exists() else None,
    )


@contextmanager
def create_once(folder: Path) -> Iterator[Path | None]:
    """A temporary folder that is renamed to ``folder`` on success, or None if ``folder`` exists.

    A second process waits for the first. What a killed process has left is removed.
    """
    if folder.exists():
        yield None
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            yield None
            return
        for stale in folder.parent.glob(f"{folder.name}.part-*") if fcntl is not None else ():
            shutil.rmtree(stale, ignore_errors=True)
        part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=folder.parent))
        try:
            yield part
            part.rename(folder)
        except BaseException as error:
            shutil.rmtree(part, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in DISK_FULL:
                raise OSError(
                    f"cannot write {folder.parent}: {error.strerror}; make room there, or give another cache"
                ) from error
            raise


def default_cache() -> Path:
    """``data`` in $PACELINE_CACHE, by default $XDG_CACHE_HOME/paceline or ~/.cache/paceline."""
    return cache_folder("data")
