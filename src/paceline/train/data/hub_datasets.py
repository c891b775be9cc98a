"""Documents of a data set of the package ``datasets``, which is an extra. Encodes nothing."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeAlias, final

from paceline.train.data.documents import Document, File, Reader, as_chat, as_row, as_text

Read: TypeAlias = Callable[[Mapping[str, object], str, str, int], Document]  # row, field, name, number


def _text(row: Mapping[str, object], field: str, name: str, number: int) -> Document:
    return as_text(row, field, name)


def _chat(row: Mapping[str, object], field: str, name: str, number: int) -> Document:
    return as_chat(row, field, name)


def _row(row: Mapping[str, object], field: str, name: str, number: int) -> Document:
    return as_row(row, name, number)


READS: dict[str, tuple[str, Read]] = {"text": ("text", _text), "chat": ("messages", _chat), "rows": ("", _row)}


@final
class DataSet(Reader):
    """A whole split of a data set, as one file; its hash is that of its rows as JSON."""

    def __init__(
        self, *, name: str, files: Sequence[str], subset: str | None, part: str, holds: str, field: str | None
    ) -> None:
        package = need_datasets(f"data: {name}")
        try:
            self._rows: Any = package.load_dataset(name, subset, split=part, data_files=list(files) or None)
        except Exception as error:  # whatever the layers below raise, it has one way out
            reason = " ".join(str(error).split())
            raise ValueError(
                f"data: {name}, {part}: cannot be loaded ({type(error).__name__}: {reason}); check the name, the files "
                "and the network"
            ) from error
        self._name = f"datasets/{name}/{part}" if subset is None else f"datasets/{name}/{subset}/{part}"
        default, self._read = READS[holds]
        self._field = field or default

    def files(self) -> list[File]:
        """The one."""
        digest, size = hashlib.sha256(), 0
        for row in self._rows:
            data = json.dumps(row, sort_keys=True, default=str).encode()
            digest.update(data)
            size += len(data)
        return [File(name=self._name, num_bytes=size, sha256=digest.hexdigest())]

    def documents(self, index: int) -> Iterator[Document]:
        """A row each."""
        for number, row in enumerate(self._rows):
            yield self._read(row, self._field, f"{self._name}, row {number}", number)


def need_datasets(what: str) -> Any:
    """The package. Raises ValueError, beginning with ``what``, where it is not installed."""
    try:
        return import_module("datasets")
    except ImportError as error:
        raise ValueError(f"{what}: the package datasets is missing; pip install 'paceline[datasets]'") from error
