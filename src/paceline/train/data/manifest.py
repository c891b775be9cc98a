"""The manifest of a run's data: name, size, hash and split of every file."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from itertools import zip_longest
from pathlib import Path

from paceline.train.files import write_atomic

MANIFEST_FILE = "data_manifest.json"


class Split(Enum):
    """What a document is used for."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"  # not used


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file of documents with its content hash. ``split`` None: not decided yet, or each document has its own."""

    name: str
    num_bytes: int
    sha256: str
    split: Split | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """What one file contributes to one split."""

    name: str
    num_bytes: int
    sha256: str
    split: str
    num_documents: int
    num_tokens: int
    num_learned: int  # tokens with a loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All files of a run, and the settings that turn them into rows."""

    files: tuple[FileRecord, ...]
    settings: tuple[tuple[str, str], ...]  # tokenizer, packing, length: name and value

    def to_json(self) -> str:
        """As written beside a run."""
        values = {"settings": dict(self.settings), "files": [asdict(record) for record in self.files]}
        return json.dumps(values, indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> "Manifest":
        """Raises ValueError for anything but a manifest."""
        try:
            values = json.loads(text)
            files = tuple(FileRecord(**record) for record in values["files"])
            return Manifest(files=files, settings=tuple(values["settings"].items()))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"no data manifest ({type(error).__name__}: {error}): take the one that the run wrote"
            ) from error

    def check_same(self, former: "Manifest") -> None:
        """Raise ValueError, naming the first difference, unless a run that began with ``former`` can resume with this.

        Files are compared by content, split and order; names may change, as when a corpus was moved.
        """
        was, now = dict(former.settings), dict(self.settings)
        for name in sorted(was.keys() | now.keys()):
            if was.get(name) != now.get(name):
                raise ValueError(f"the run began with {name} {was.get(name)}, and now has {now.get(name)}: {ADVICE}")
        for old, new in zip_longest(former.files, self.files):
            if old is None:
                raise ValueError(f"{new.name} is not among the files that the run began with: {ADVICE}")
            if new is None:
                raise ValueError(f"{old.name}, which the run began with, is gone: {ADVICE}")
            if (old.sha256, old.split) != (new.sha256, new.split):
                raise ValueError(f"{new.name} is not what {old.name} was when the run began: {ADVICE}")

    def write(self, folder: Path) -> Path:
        """Write into ``folder``."""
        write_atomic(folder / MANIFEST_FILE, self.to_json())
        return folder / MANIFEST_FILE


ADVICE = "restore the corpus as it was, or start a new run"


def check_disjoint(files: Iterable[File]) -> None:
    """Raise ValueError, naming both, if a file occurs twice with different splits."""
    seen: dict[str, File] = {}
    for file in files:
        other = seen.setdefault(file.sha256, file)
        if other.split != file.split:
            raise ValueError(
                f"{other.name} ({_used_for(other)}) and {file.name} ({_used_for(file)}) are the same file: what is "
                "held out must not be trained on; remove one of them"
            )


def _used_for(file: File) -> str:
    return "train and validation" if file.split is None else file.split.value
