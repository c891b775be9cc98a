"""Reads a dataset of the package ``datasets``, which is an extra."""

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from typing import Any, final

from paceline.train.data.config import DatasetsSource
from paceline.train.data.encoders import Encoder
from paceline.train.data.manifest import File
from paceline.train.data.sources.documents import Document, Reader
from paceline.train.data.sources.text_files import PARSERS

FIELDS = {"text": "text", "chat": "messages", "rows": ""}  # content -> default column


@final
class HubDataset(Reader):
    """A split of a dataset, as one file; its hash is that of its rows as JSON, streamed or not."""

    def __init__(self, source: DatasetsSource, encoder: Encoder) -> None:
        package = import_datasets(f"data: {source.name}")
        self._source = source
        self._name = "/".join(filter(None, ("datasets", source.name, source.subset, source.part)))
        self._parse, self._field = PARSERS[source.holds], source.field or FIELDS[source.holds]
        options = {"split": source.part, "data_files": list(source.files) or None, "streaming": source.streaming}
        with self._naming_errors():
            self._rows: Iterable[Mapping[str, object]] = package.load_dataset(source.name, source.subset, **options)

    def files(self) -> list[File]:
        """The split as one file."""
        digest, size = hashlib.sha256(), 0
        for row in self._read():
            data = json.dumps(row, sort_keys=True, default=str).encode()
            digest.update(data)
            size += len(data)
        return [File(name=self._name, num_bytes=size, sha256=digest.hexdigest())]

    def documents(self, index: int) -> Iterator[Document]:
        """One document per row."""
        for number, row in enumerate(self._read()):
            yield self._parse(row, self._field, f"{self._name}, row {number}", number)

    def _read(self) -> Iterator[Mapping[str, object]]:
        with self._naming_errors():
            yield from islice(self._rows, self._source.take)

    @contextmanager
    def _naming_errors(self) -> Iterator[None]:
        source = self._source
        try:
            yield
        except Exception as error:  # datasets raises many kinds, when it loads and when it streams
            reason = " ".join(str(error).split())
            raise ValueError(
                f"data: {source.name}, {source.part}: cannot be loaded ({type(error).__name__}: {reason}); check the "
                "name, the files and the network"
            ) from error


def import_datasets(what: str) -> Any:
    """The package. Raises ValueError, beginning with ``what``, if it is not installed."""
    try:
        package = import_module("datasets")
    except ImportError as error:
        raise ValueError(f"{what}: the package datasets is missing; pip install 'paceline[datasets]'") from error
    if not sys.stderr.isatty():
        package.disable_progress_bars()
    return package
