"""Documents that are numbers already: token files, one file cut by bytes, and the standard library. Encodes nothing.

N tokens of a file, P sequences of T tokens.
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import final

import numpy as np

from paceline.train.data.corpus import standard_library
from paceline.train.data.documents import Document, File, Reader, Text, Tokens, describe, find_files
from paceline.train.data.manifest import Split

ENWIK8 = "http://mattmahoney.net/dc/enwik8.zip"


@final
class TokenFiles(Reader):
    """Arrays of ids: a document up to each ``end_of_text``, or one in all; of two-dimensional arrays one a row."""

    def __init__(self, *, paths: Sequence[str], dtype: str, end_of_text: int | None) -> None:
        self._paths, self._dtype, self._end = find_files(paths), np.dtype(dtype), end_of_text

    def files(self) -> list[File]:
        """As found on disk."""
        return [describe(path) for path in self._paths]

    def documents(self, index: int) -> Iterator[Document]:
        """Slices of a memory map."""
        path = self._paths[index]
        tokens = self._open(path)
        if tokens.ndim == 2:
            starts = list(range(0, tokens.size + 1, tokens.shape[1])) if tokens.size else [0]
            tokens = tokens.reshape(-1)
        else:
            ends = [] if self._end is None else (np.flatnonzero(tokens == self._end) + 1).tolist()
            starts = [0, *ends, *([len(tokens)] if not ends or ends[-1] < len(tokens) else [])]
        for number, (start, stop) in enumerate(pairwise(starts)):
            if stop > start:
                yield Tokens(name=f"{path}, document {number}", tokens=tokens[start:stop], origin=number)

    def _open(self, path: Path) -> np.ndarray:
        if path.suffix != ".npy":
            size = path.stat().st_size
            if size % self._dtype.itemsize:
                raise ValueError(f"{path}: {size} bytes are no whole number of {self._dtype} ids; give the right dtype")
            return np.memmap(path, dtype=self._dtype, mode="r") if size else np.empty(0, self._dtype)
        try:
            tokens = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise ValueError(f"{path}: no array of numbers ({error}); write it by numpy.save") from error
        if tokens.ndim not in (1, 2) or tokens.dtype.kind not in "iu":
            raise ValueError(f"{path}: {tokens.dtype} of shape {list(tokens.shape)}; integers [N] or [P, T] are wanted")
        return tokens


@final
class BytesFile(Reader):
    """One file cut at fixed bytes, so that its parts are the same for everybody: of enwik8, 90, 5 and 5 million."""

    def __init__(self, *, path: str, train: int, validation: int, test: int) -> None:
        if not Path(path).is_file():
            raise ValueError(f"data: {path}: no such file; enwik8 is in {ENWIK8}: unpack it, and give its path")
        self._path, self._sizes = Path(path), (train, validation, test)
        size = self._path.stat().st_size
        if size < sum(self._sizes):
            raise ValueError(
                f"data: {path}: {size} bytes, and train, validation and test want {sum(self._sizes)}; give smaller ones"
            )

    def files(self) -> list[File]:
        """The parts, those that are empty left out."""
        return [
            File(
                name=f"{self._path.as_posix()}[{start}:{stop}]",
                num_bytes=stop - start,
                sha256=hashlib.sha256(self._part(start, stop).data).hexdigest(),
                split=split,
            )
            for split, start, stop in self._parts()
        ]

    def documents(self, index: int) -> Iterator[Document]:
        """A part is one document."""
        _, start, stop = self._parts()[index]
        yield Tokens(name=f"{self._path}[{start}:{stop}]", tokens=self._part(start, stop))

    def _parts(self) -> list[tuple[Split, int, int]]:
        stops = np.cumsum(self._sizes).tolist()
        cuts = zip(Split, [0, *stops], stops, strict=False)
        return [(split, start, stop) for split, start, stop in cuts if stop > start]

    def _part(self, start: int, stop: int) -> np.ndarray:
        return np.memmap(self._path, dtype=np.uint8, mode="r", offset=start, shape=stop - start)


@final
class StandardLibrary(Reader):
    """Python's own source and topics, held out by name."""

    def __init__(self) -> None:
        self._documents = standard_library()

    def files(self) -> list[File]:
        """Each module and topic."""
        found = []
        for document in self._documents:
            data = document.text.encode()
            split = Split.VALIDATION if document.held_out else Split.TRAIN
            digest = hashlib.sha256(data).hexdigest()
            found.append(File(name=document.name, num_bytes=len(data), sha256=digest, split=split))
        return found

    def documents(self, index: int) -> Iterator[Document]:
        """Its text, if it has any."""
        document = self._documents[index]
        if document.text:
            yield Text(name=document.name, text=document.text)
