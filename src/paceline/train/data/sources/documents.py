"""Documents before tokenisation, and the interface of the readers that give them."""

import glob
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from paceline.train.data.config import FilesSource
from paceline.train.data.encoders import Encoder
from paceline.train.data.manifest import File


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Text, to be tokenised."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """Messages, to be rendered by the chat template and tokenised."""

    name: str
    messages: Sequence[Mapping[str, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Token ids [N] of the target, and which of them are learned; None: all."""

    name: str
    tokens: np.ndarray
    learned: np.ndarray | None = None  # [N] bool
    origin: int = 0  # its number in its file, by which hidden states and sounds are found
    num_source: int = 0  # tokens at the beginning that an encoder reads; the rest is the output


Document: TypeAlias = Text | Chat | Tokens


class Reader(ABC):
    """The documents of a source, file by file. Raises ValueError naming file and line for whatever it cannot read.

    A reader is made of the section that configures it, and of the encoder of its texts.
    """

    @abstractmethod
    def __init__(self, source: Any, encoder: Encoder) -> None: ...

    @abstractmethod
    def files(self) -> list[File]:
        """Every file, in a fixed order. At least one."""

    @abstractmethod
    def documents(self, index: int) -> Iterator[Document]:
        """The documents of file ``index``, in order."""


class FileReader(Reader):
    """A reader of files on disk. Raises ValueError if there are none."""

    def __init__(self, source: FilesSource, encoder: Encoder) -> None:
        self._paths = find_files(source.paths)

    def files(self) -> list[File]:
        """Each file with its size and hash."""
        return [describe_file(path) for path in self._paths]


def find_files(paths: Sequence[str]) -> list[Path]:
    """The files that paths, folders and globs name, each once, sorted. Raises ValueError for one that names none."""
    found: dict[Path, None] = {}
    for name in paths:
        path = Path(name)
        if path.is_dir():
            hits = [hit for hit in path.rglob("*") if hit.is_file()]
        elif path.is_file():
            hits = [path]
        else:
            hits = [Path(hit) for hit in glob.glob(name, recursive=True) if Path(hit).is_file()]
        if not hits:
            raise ValueError(f"data: {name}: no such file, and no folder or pattern with any; give one that is there")
        found.update(dict.fromkeys(sorted(hits)))
    return list(found)


def describe_file(path: Path) -> File:
    """Size and hash of a file."""
    with path.open("rb") as file:
        return File(
            name=path.as_posix(),
            num_bytes=path.stat().st_size,
            sha256=hashlib.file_digest(file, "sha256").hexdigest(),
        )
