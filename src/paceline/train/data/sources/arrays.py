"""Readers of token ids: arrays of them, and byte ranges of one file.

N tokens of a file, P sequences of T tokens.
"""

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import final

import numpy as np

from paceline.train.data.config import BytesSource, TokensSource
from paceline.train.data.encoders import ByteEncoder, Encoder
from paceline.train.data.manifest import File, Split
from paceline.train.data.sources.documents import Document, FileReader, Reader, Tokens

ENWIK8 = "http://mattmahoney.net/dc/enwik8.zip"


@final
class TokenFiles(FileReader):
    """Arrays of token ids. A document ends at each ``end_of_text``; two-dimensional arrays have one per row."""

    def __init__(self, source: TokensSource, encoder: Encoder) -> None:
        super().__init__(source, encoder)
        self._dtype, self._end = np.dtype(source.dtype), encoder.end_of_text

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
class ByteRanges(Reader):
    """One file split at fixed bytes, by default enwik8's usual 90, 5 and 5 million."""

    def __init__(self, source: BytesSource, encoder: Encoder) -> None:
        path, sizes = source.path, (source.train, source.validation, source.test)
        if not isinstance(encoder, ByteEncoder):
            raise ValueError(f"data: {path}: a source of bytes wants tokenizer: bytes; or take it as text")
        if not Path(path).is_file():
            raise ValueError(f"data: {path}: no such file; enwik8 is in {ENWIK8}: unpack it, and give its path")
        self._path = Path(path)
        size = self._path.stat().st_size
        if size < sum(sizes):
            raise ValueError(
                f"data: {path}: {size} bytes, and train, validation and test want {sum(sizes)}; give smaller ones"
            )
        stops = np.cumsum(sizes).tolist()
        ranges = zip(Split, [0, *stops], stops, strict=False)
        self._ranges = [(split, start, stop) for split, start, stop in ranges if stop > start]

    def files(self) -> list[File]:
        """The ranges that are not empty."""
        return [
            File(
                name=f"{self._path.as_posix()}[{start}:{stop}]",
                num_bytes=stop - start,
                sha256=hashlib.sha256(self._read(start, stop).data).hexdigest(),
                split=split,
            )
            for split, start, stop in self._ranges
        ]

    def documents(self, index: int) -> Iterator[Document]:
        """A range is one document."""
        _, start, stop = self._ranges[index]
        yield Tokens(name=f"{self._path}[{start}:{stop}]", tokens=self._read(start, stop))

    def _read(self, start: int, stop: int) -> np.ndarray:
        return np.memmap(self._path, dtype=np.uint8, mode="r", offset=start, shape=stop - start)
