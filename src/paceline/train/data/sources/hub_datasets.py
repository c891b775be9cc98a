"""Reads a dataset of the package ``datasets``, which is an extra."""

import hashlib
import json
from collections.abc import Iterator
from importlib import import_module
from typing import Any, final

from paceline.train.data.config import DatasetsSource
from paceline.train.data.sources.documents import Document, File, Reader
from paceline.train.data.sources.text_files import Parse, parse_chat, parse_row, parse_text

PARSERS: dict[str, tuple[str, Parse]] = {  # content -> default field, parser
    "text": ("text", parse_text),
    "chat": ("messages", parse_chat),
    "rows": ("", parse_row),
}


@final
class HubDataset(Reader):
    """A split of a dataset, as one file; its hash is that of its rows as JSON."""

    def __init__(self, source: DatasetsSource) -> None:
        name, subset, part = source.name, source.subset, source.part
        package = import_datasets(f"data: {name}")
        try:
            self._rows: Any = package.load_dataset(name, subset, split=part, data_files=list(source.files) or None)
        except Exception as error:  # datasets raises many kinds
            reason = " ".join(str(error).split())
            raise ValueError(
                f"data: {name}, {part}: cannot be loaded ({type(error).__name__}: {reason}); check the name, the files "
                "and the network"
            ) from error
        self._name = "/".join(["datasets", name, *([] if subset is None else [subset]), part])
        default, self._parse = PARSERS[source.holds]
        self._field = source.field or default

    def files(self) -> list[File]:
        """The split as one file."""
        digest, size = hashlib.sha256(), 0
        for row in self._rows:
            data = json.dumps(row, sort_keys=True, default=str).encode()
            digest.update(data)
            size += len(data)
        return [File(name=self._name, num_bytes=size, sha256=digest.hexdigest())]

    def documents(self, index: int) -> Iterator[Document]:
        """One document per row."""
        for number, row in enumerate(self._rows):
            yield self._parse(row, self._field, f"{self._name}, row {number}", number)


def import_datasets(what: str) -> Any:
    """The package. Raises ValueError, beginning with ``what``, if it is not installed."""
    try:
        return import_module("datasets")
    except ImportError as error:
        raise ValueError(f"{what}: the package datasets is missing; pip install 'paceline[datasets]'") from error
