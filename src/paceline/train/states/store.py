"""A folder of hidden states: a manifest, and shards of rows that are whole or not there.

``manifest.json`` says of what the states are. ``shards/*.safetensors`` hold n rows each: ``rows`` [n] int64, the
numbers of training rows; ``tokens`` [n, T + 1] int32; ``states`` [n, L, T, H] in the target's precision, the residual
stream at L taps. T inputs of a row, H hidden size, B rows of a batch.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from paceline.train.data.store import DISK_FULL
from paceline.train.files import write_atomic

MANIFEST, SHARDS = "manifest.json", "shards"
LAYOUT = 1
TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StatesShape:
    """The sizes of one row's states."""

    taps: tuple[int, ...]  # ascending
    length: int  # T
    hidden_size: int
    dtype: torch.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of a row on disk, its tokens included."""
        states = len(self.taps) * self.length * self.hidden_size * self.dtype.itemsize
        return states + (self.length + 1) * TOKEN_BYTES + 8


@final
class StatesFolder:
    """The states in ``folder``; what is there is found when it is made and by ``refresh``.

    ``identity`` describes target and rows. A folder may hold more taps than ``shape`` asks for, and then goes on to.
    Raises ValueError, naming the first difference, for states of something else, and for a folder of other files.
    """

    def __init__(self, folder: Path, *, identity: Mapping[str, object], shape: StatesShape) -> None:
        self.folder, self._identity, self._asked = folder, dict(identity), shape
        self.shape = shape
        self._places: dict[int, tuple[Path, int]] = {}
        path = folder / MANIFEST
        if path.exists():
            taps = self._check(json.loads(path.read_text(encoding="utf-8")))
            self.shape = StatesShape(taps=taps, length=shape.length, hidden_size=shape.hidden_size, dtype=shape.dtype)
        elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(
                f"hidden_states.folder={folder}: it is not empty and holds no {MANIFEST}; give a folder of its own"
            )
        self.refresh()

    @property
    def num_rows(self) -> int:
        """Rows that are there."""
        return len(self._places)

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(path.stat().st_size for path in self._shards())

    def missing(self, rows: Iterable[int]) -> list[int]:
        """Those of ``rows`` that are not there, in their order."""
        return [row for row in rows if row not in self._places]

    def begin(self) -> None:
        """Make the folder and its manifest, before the first shard, so that what a kill leaves can be completed."""
        (self.folder / SHARDS).mkdir(parents=True, exist_ok=True)
        path = self.folder / MANIFEST
        if not path.exists():
            meta = {"layout": LAYOUT, **self._identity, "taps": list(self.shape.taps)}
            write_atomic(path, json.dumps(meta, indent=1) + "\n")

    def write(self, rows: Sequence[int], tokens: Tensor, states: Tensor) -> None:
        """A shard of ``rows`` with ``tokens`` [n, T + 1] and ``states`` [n, L, T, H], renamed once it is on the disk.

        Raises OSError if there is no room.
        """
        name = hashlib.sha256(json.dumps(list(rows)).encode()).hexdigest()[:24]
        path = self.folder / SHARDS / f"{name}.safetensors"
        part = path.with_suffix(f".part-{os.getpid()}")
        tensors = {"rows": torch.tensor(rows, dtype=torch.int64), "tokens": tokens.int(), "states": states}
        try:
            save_file({key: value.cpu().contiguous() for key, value in tensors.items()}, part)
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.replace(path)
        except (OSError, SafetensorError) as error:
            part.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno not in DISK_FULL:
                raise
            raise OSError(
                f"hidden_states: {self.folder} cannot be written ({' '.join(str(error).split())}); the shards before "
                "are whole: make room, or give another folder, and start the same command again"
            ) from error

    def refresh(self) -> None:
        """Find the shards that are there. Raises ValueError, naming the file, for one that cannot be read."""
        known = {path for path, _ in self._places.values()}
        for path in self._shards():
            if path not in known:
                with _opened(path) as file:
                    rows = file.get_tensor("rows").tolist()
                self._places.update({row: (path, at) for at, row in enumerate(rows)})

    def read(self, rows: Sequence[int], tokens: Tensor) -> dict[int, Tensor]:
        """The states of ``rows``, whose ``tokens`` are [B, T + 1]: tap -> [B, T, H], of the taps that were asked for.

        Raises ValueError, naming the file, if one is broken or was made of other tokens. Nothing stays mapped.
        """
        at = [self.shape.taps.index(tap) for tap in self._asked.taps]
        found = [self._read_row(row, tokens[index], at) for index, row in enumerate(rows)]
        return {tap: torch.stack([states[index] for states in found]) for index, tap in enumerate(self._asked.taps)}

    def _read_row(self, row: int, tokens: Tensor, at: Sequence[int]) -> list[Tensor]:
        path, place = self._places[row]
        with _opened(path) as file:
            if not torch.equal(file.get_slice("tokens")[place : place + 1][0].long(), tokens):
                raise ValueError(f"{path}: states of other tokens than row {row} has; {_again(path)}")
            states = file.get_slice("states")
            return [states[place : place + 1, index : index + 1][0, 0] for index in at]

    def _check(self, found: Mapping[str, object]) -> tuple[int, ...]:
        """The taps of the folder."""
        wanted = {"layout": LAYOUT, **self._identity}
        taps = found.get("taps")
        for name in sorted(wanted.keys() | found.keys() - {"taps"}):
            if found.get(name) != wanted.get(name):
                raise ValueError(
                    f"hidden_states.folder={self.folder}: it holds states with {name} {found.get(name)!r}, and this "
                    f"run has {wanted.get(name)!r}; give another folder, or delete this one"
                )
        if not isinstance(taps, list) or not set(self._asked.taps) <= set(taps):
            raise ValueError(
                f"hidden_states.folder={self.folder}: it holds the taps {taps}, and this run reads "
                f"{list(self._asked.taps)}; give another folder, or make it anew with hidden_states.taps that hold all"
            )
        return tuple(taps)

    def _shards(self) -> list[Path]:
        return sorted((self.folder / SHARDS).glob("*.safetensors"))


class _opened:
    """A shard, open. Raises ValueError, naming the file, for whatever it cannot give."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> safe_open:
        try:
            self._file = safe_open(self._path, framework="pt")
            return self._file.__enter__()
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{self._path}: cannot be read ({error}); {_again(self._path)}") from error

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(None, None, None)


def _again(path: Path) -> str:
    return f"delete {path.name}, and its rows are computed again"
