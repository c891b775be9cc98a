"""Python's standard library as a corpus that every machine has."""

import hashlib
import pydoc_data.topics
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

from paceline.train.data.config import LibrarySource
from paceline.train.data.encoders import Encoder
from paceline.train.data.manifest import File, Split
from paceline.train.data.sources.documents import Document, Reader, Text

EXCLUDED_FOLDERS = frozenset({"site-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3"})
# Never trained on: validation loss and acceptance are measured on these.
HELD_OUT = frozenset(
    {
        "argparse.py",
        "asyncio/queues.py",
        "bisect.py",
        "calendar.py",
        "collections/__init__.py",
        "csv.py",
        "dataclasses.py",
        "email/message.py",
        "fractions.py",
        "heapq.py",
        "http/cookies.py",
        "json/decoder.py",
        "logging/handlers.py",
        "queue.py",
        "shlex.py",
        "statistics.py",
        "textwrap.py",
        "zipfile.py",
        "zipfile/__init__.py",  # where it moved in Python 3.12
    }
)


@dataclass(frozen=True, slots=True)
class LibraryFile:
    """A module or topic, with its name in the manifest."""

    name: str
    text: str
    held_out: bool

    def describe(self) -> File:
        """Size, hash and split."""
        data = self.text.encode()
        split = Split.VALIDATION if self.held_out else Split.TRAIN
        return File(name=self.name, num_bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), split=split)


@final
class StandardLibrary(Reader):
    """Python's own source and its pydoc topics; the held-out files are a fixed list."""

    def __init__(self, source: LibrarySource, encoder: Encoder) -> None:
        self._files = standard_library()

    def files(self) -> list[File]:
        """Each module and topic."""
        return [file.describe() for file in self._files]

    def documents(self, index: int) -> Iterator[Document]:
        """Its text, if it is not empty."""
        file = self._files[index]
        if file.text:
            yield Text(name=file.name, text=file.text)


def standard_library() -> list[LibraryFile]:
    """Python's standard library (source without its tests) and its pydoc topics, sorted by name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [LibraryFile(f"pydoc/{name}", text, False) for name, text in sorted(pydoc_data.topics.topics.items())]
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if EXCLUDED_FOLDERS & set(name.parts):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a few old modules have other encodings
            continue
        files.append(LibraryFile(name.as_posix(), text, name.as_posix() in HELD_OUT))
    return files
