"""What a document is before it is tokens, and files that hold many of them line by line. Encodes nothing."""

import glob
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeGuard, final

import numpy as np

from paceline.train.data.manifest import Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A text that an encoder reads."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """Messages that an encoder's template writes."""

    name: str
    messages: Sequence[Mapping[str, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Ids [N] of the target, and which of them are learned; None: all."""

    name: str
    tokens: np.ndarray
    learned: np.ndarray | None = None  # [N] bool
    origin: int = 0  # number in its file, for what lies beside it


Document: TypeAlias = Text | Chat | Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """Something that documents come from, with what tells it from others; ``split`` None: its hash decides."""

    name: str
    num_bytes: int
    sha256: str
    split: Split | None = None


class Reader(ABC):
    """A source of documents, file by file. Raises ValueError, naming file and line, for whatever it cannot read."""

    @abstractmethod
    def files(self) -> list[File]:
        """Every file, in a fixed order. At least one."""

    @abstractmethod
    def documents(self, index: int) -> Iterator[Document]:
        """The documents of file ``index``, in their order."""


@final
class TextFiles(Reader):
    """A document a file."""

    def __init__(self, *, paths: Sequence[str]) -> None:
        self._paths = find_files(paths)

    def files(self) -> list[File]:
        """As found on disk."""
        return [describe(path) for path in self._paths]

    def documents(self, index: int) -> Iterator[Document]:
        """Its only one; none of an empty file."""
        path = self._paths[index]
        text = _decoded(path.read_bytes(), str(path))
        if text:
            yield Text(name=str(path), text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An object of a file, with its place."""

    name: str
    number: int
    row: Mapping[str, object]


class _Lines(Reader):
    """A JSON object a line."""

    def __init__(self, *, paths: Sequence[str]) -> None:
        self._paths = find_files(paths)

    def files(self) -> list[File]:
        """As found on disk."""
        return [describe(path) for path in self._paths]

    def lines(self, index: int) -> Iterator[Line]:
        """Those of a file that are not blank."""
        path = self._paths[index]
        with path.open("rb") as file:
            for number, data in enumerate(file):
                name = f"{path}, line {number + 1}"
                text = _decoded(data, name)
                if text.strip():
                    yield Line(name=name, number=number, row=_object(text, name))


@final
class JsonlTexts(_Lines):
    """With a text in ``field``."""

    def __init__(self, *, paths: Sequence[str], field: str) -> None:
        super().__init__(paths=paths)
        self._field = field

    def documents(self, index: int) -> Iterator[Document]:
        """One a line; an empty text is none."""
        found = (as_text(line.row, self._field, line.name) for line in self.lines(index))
        yield from (text for text in found if text.text)


@final
class JsonlChats(_Lines):
    """With messages in ``field``."""

    def __init__(self, *, paths: Sequence[str], field: str) -> None:
        super().__init__(paths=paths)
        self._field = field

    def documents(self, index: int) -> Iterator[Document]:
        """One a line."""
        yield from (as_chat(line.row, self._field, line.name) for line in self.lines(index))


@final
class JsonlRows(_Lines):
    """With token ids and a mask; lines that say of themselves that they were left out are no documents."""

    def documents(self, index: int) -> Iterator[Document]:
        """One a line."""
        yield from self.rows(index)

    def rows(self, index: int = 0) -> Iterator[Tokens]:
        """The same, as what they are."""
        for line in self.lines(index):
            if "left_out" not in line.row:
                yield as_row(line.row, line.name, line.number)


def as_text(row: Mapping[str, object], field: str, name: str) -> Text:
    """The text in ``field`` of a row. Raises ValueError, beginning with ``name``, where there is none."""
    value = _field(row, field, name)
    if not isinstance(value, str):
        raise ValueError(f"{name}: {field} is a {type(value).__name__}; a text is wanted")
    return Text(name=name, text=value)


def as_chat(row: Mapping[str, object], field: str, name: str) -> Chat:
    """The messages in ``field`` of a row. Raises ValueError, beginning with ``name``, where there are none."""
    value = _field(row, field, name)
    if not isinstance(value, list) or not all(isinstance(message, Mapping) for message in value):
        raise ValueError(f"{name}: {field} is no list of messages; give objects with role and content")
    return Chat(name=name, messages=value)


def as_row(row: Mapping[str, object], name: str, origin: int) -> Tokens:
    """input_ids and loss_mask of a row. Raises ValueError, beginning with ``name``, where they do not fit."""
    ids, mask = _field(row, "input_ids", name), row.get("loss_mask")
    if not _are_integers(ids):
        raise ValueError(f"{name}: input_ids is no list of token ids")
    if mask is not None and not (_are_integers(mask) and set(mask) <= {0, 1}):
        raise ValueError(f"{name}: loss_mask is no list of 0 and 1")
    if mask is not None and len(mask) != len(ids):
        raise ValueError(f"{name}: input_ids has {len(ids)} entries and loss_mask {len(mask)}; give one for each")
    learned = None if mask is None else np.asarray(mask, dtype=bool)
    return Tokens(name=name, tokens=np.asarray(ids, dtype=np.int64), learned=learned, origin=origin)


def find_files(paths: Sequence[str]) -> list[Path]:
    """What files, folders and globs name, each file once, sorted. Raises ValueError for one that names none."""
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


def describe(path: Path) -> File:
    """Size and hash of a file."""
    with path.open("rb") as file:
        return File(
            name=path.as_posix(),
            num_bytes=path.stat().st_size,
            sha256=hashlib.file_digest(file, "sha256").hexdigest(),
        )


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 (byte {error.start}); convert it, or take it as bytes") from error


def _object(text: str, name: str) -> Mapping[str, object]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{name}: not JSON ({error}); give an object a line") from error
    if not isinstance(value, dict):
        raise ValueError(f"{name}: a {type(value).__name__}, no JSON object")
    return value


def _field(row: Mapping[str, object], field: str, name: str) -> object:
    if field not in row:
        raise ValueError(f"{name}: no {field!r} among {', '.join(map(repr, row)) or 'no fields'}; name the right field")
    return row[field]


def _are_integers(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(entry) is int or entry is True or entry is False for entry in value)
