"""Readers of text files and of JSON lines, and the parsing of a row into a document."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias, TypeGuard, final

import numpy as np

from paceline.train.data.config import ChatSource, JsonlSource, RowsSource
from paceline.train.data.encoders import Encoder
from paceline.train.data.sources.documents import Chat, Document, FileReader, Text, Tokens

Row: TypeAlias = Mapping[str, object]
LEFT_OUT = "left_out"  # the field in which paceline data regenerate gives the reason
Parse: TypeAlias = Callable[[Row, str, str, int], Document]  # row, field, name of the row for errors, its number


@final
class TextFiles(FileReader):
    """One document per file."""

    def documents(self, index: int) -> Iterator[Document]:
        """The only document; none for an empty file."""
        path = self._paths[index]
        text = _decode(path.read_bytes(), str(path))
        if text:
            yield Text(name=str(path), text=text)


@final
class JsonLines(FileReader):
    """One JSON object per line, each a document; empty texts, and rows that say why they are left out, are skipped."""

    def __init__(self, source: JsonlSource | ChatSource | RowsSource, encoder: Encoder) -> None:
        super().__init__(source, encoder)
        self._parse = PARSERS[source.kind]
        self._field = "" if isinstance(source, RowsSource) else source.field
        self._skipped = LEFT_OUT if isinstance(source, RowsSource) else None

    def documents(self, index: int) -> Iterator[Document]:
        """The documents of all lines that are not blank."""
        for number, name, row in read_objects(self._paths[index]):
            if self._skipped in row:
                continue
            document = self._parse(row, self._field, name, number)
            if not isinstance(document, Text) or document.text:
                yield document


def read_objects(path: Path) -> Iterator[tuple[int, str, Row]]:
    """Number, name for errors, and object of every line of ``path`` that is not blank.

    Raises ValueError, naming the line, for anything else.
    """
    with path.open("rb") as file:
        for number, data in enumerate(file):
            name = f"{path}, line {number + 1}"
            text = _decode(data, name)
            if text.strip():
                yield number, name, _json_object(text, name)


def parse_text(row: Row, field: str, name: str, number: int) -> Text:
    """The text in ``field``. Raises ValueError, beginning with ``name``, if there is none."""
    value = field_of(row, field, name)
    if not isinstance(value, str):
        raise ValueError(f"{name}: {field} is a {type(value).__name__}; a text is wanted")
    return Text(name=name, text=value)


def parse_chat(row: Row, field: str, name: str, number: int) -> Chat:
    """The messages in ``field``. Raises ValueError, beginning with ``name``, if there are none."""
    value = field_of(row, field, name)
    if not isinstance(value, list) or not all(isinstance(message, Mapping) for message in value):
        raise ValueError(f"{name}: {field} is no list of messages; give objects with role and content")
    return Chat(name=name, messages=value)


def parse_row(row: Row, field: str, name: str, number: int) -> Tokens:
    """input_ids and loss_mask. Raises ValueError, beginning with ``name``, if they do not fit each other."""
    ids, mask = field_of(row, "input_ids", name), row.get("loss_mask")
    if not are_integers(ids):
        raise ValueError(f"{name}: input_ids is no list of token ids")
    if mask is not None and not (are_integers(mask) and set(mask) <= {0, 1}):
        raise ValueError(f"{name}: loss_mask is no list of 0 and 1")
    if mask is not None and len(mask) != len(ids):
        raise ValueError(f"{name}: input_ids has {len(ids)} entries and loss_mask {len(mask)}; give one for each")
    learned = None if mask is None else np.asarray(mask, dtype=bool)
    return Tokens(name=name, tokens=np.asarray(ids, dtype=np.int64), learned=learned, origin=number)


PARSERS: Mapping[str, Parse] = {"text": parse_text, "jsonl": parse_text, "chat": parse_chat, "rows": parse_row}


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 (byte {error.start}); convert it, or take it as bytes") from error


def _json_object(text: str, name: str) -> Row:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{name}: not JSON ({error}); give an object a line") from error
    if not isinstance(value, dict):
        raise ValueError(f"{name}: a {type(value).__name__}, no JSON object")
    return value


def field_of(row: Row, field: str, name: str) -> object:
    """The value of ``field``. Raises ValueError, beginning with ``name``, if there is none."""
    if field not in row:
        raise ValueError(f"{name}: no {field!r} among {', '.join(map(repr, row)) or 'no fields'}; name the right field")
    return row[field]


def are_integers(value: object) -> TypeGuard[list[int]]:
    """Whether ``value`` is a list of whole numbers, as of token ids."""
    return isinstance(value, list) and all(type(entry) is int or entry is True or entry is False for entry in value)
