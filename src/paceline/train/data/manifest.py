"""Which files a run was trained on: name, size, hash and split of each. Reads no text."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

MANIFEST_FILE = "data_manifest.json"


class Split(Enum):
    """What a document is for."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"  # read by nobody here


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """What one file gave to one split."""

    name: str
    num_bytes: int
    sha256: str
    split: str
    num_documents: int
    num_tokens: int
    num_learned: int  # of these, those that a loss counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All files of a run, and what turned them into rows."""

    files: tuple[FileRecord, ...]
    settings: tuple[tuple[str, str], ...]  # tokenizer, packing, length: name and value

    def to_json(self) -> str:
        """As it is written beside a run."""
        whole = {"settings": dict(self.settings), "files": [asdict(record) for record in self.files]}
        return json.dumps(whole, indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> "Manifest":
        """Raises ValueError for a text that is no manifest."""
        try:
            whole = json.loads(text)
            files = tuple(FileRecord(**record) for record in whole["files"])
            return Manifest(files=files, settings=tuple(whole["settings"].items()))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"no data manifest ({type(error).__name__}: {error}): take the one that the run wrote"
            ) from error

    def check_same(self, former: "Manifest") -> None:
        """Raise ValueError, naming the first difference, unless a run that began with ``former`` can go on with this.

        Files are compared by content, split and order: their names may change, as when a corpus was moved.
        """
        was, now = dict(former.settings), dict(self.settings)
        for name in sorted(was.keys() | now.keys()):
            if was.get(name) != now.get(name):
                raise ValueError(f"the run began with {name} {was.get(name)}, and now has {now.get(name)}: {WAY_OUT}")
        for index in range(max(len(former.files), len(self.files))):
            old, new = (files[index] if index < len(files) else None for files in (former.files, self.files))
            if old is None and new is not None:
                raise ValueError(f"{new.name} is not among the files that the run began with: {WAY_OUT}")
            if old is not None and new is None:
                raise ValueError(f"{old.name}, which the run began with, is gone: {WAY_OUT}")
            if old is not None and new is not None and (old.sha256, old.split) != (new.sha256, new.split):
                raise ValueError(f"{new.name} is not what {old.name} was when the run began: {WAY_OUT}")

    def write(self, folder: Path) -> Path:
        """Into ``folder``, beside the run."""
        path = folder / MANIFEST_FILE
        part = path.with_suffix(".part")
        part.write_text(self.to_json(), encoding="utf-8")
        part.replace(path)
        return path


WAY_OUT = "bring the corpus back as it was, or begin a new run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """A whole file and the splits that its documents go to."""

    name: str
    sha256: str
    splits: frozenset[Split]


def check_apart(files: Iterable[Assigned]) -> None:
    """Raise ValueError, naming both, if one file is found twice and not for the same splits."""
    seen: dict[str, Assigned] = {}
    for file in files:
        other = seen.setdefault(file.sha256, file)
        if other.splits != file.splits:
            raise ValueError(
                f"{other.name} ({_words(other)}) and {file.name} ({_words(file)}) are the same file: what is held out "
                "must not be trained on; remove one of them"
            )


def _words(file: Assigned) -> str:
    return " and ".join(split.value for split in Split if split in file.splits)
