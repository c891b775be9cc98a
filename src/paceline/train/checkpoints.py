"""What a run needs to go on, kept so that a crash at any moment leaves a whole one. Knows nothing of models or losses.

A checkpoint is a folder named by its step: tensors, and meta.json. It is written aside and moved into place.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from paceline.train.distributed import Strategy

META_FILE = "meta.json"
DIGITS = 8


class CheckpointError(OSError):
    """A checkpoint that could not be written, and what is left."""


@final
class Checkpoints:
    """The last ``keep`` checkpoints in ``folder``; an older one goes only when a newer one is whole."""

    def __init__(self, *, folder: Path, keep: int, strategy: Strategy) -> None:
        self.folder, self.keep, self.strategy = folder, keep, strategy

    @property
    def latest(self) -> Path | None:
        """The newest one that is whole."""
        return max(whole_folders(self.folder), default=None)

    def meta(self, path: Path) -> dict[str, Any]:
        """What was written beside the tensors. Raises ValueError for tensors that this strategy cannot read."""
        meta = json.loads((path / META_FILE).read_text(encoding="utf-8"))
        if meta["files"] != self.strategy.files:
            both = {"safetensors": "single or ddp", "dcp": "fsdp2"}
            raise ValueError(
                f"{path} was written by distributed={both[meta['files']]}, and cannot be read by "
                f"{both[self.strategy.files]}: go on as it began, or start anew with --fresh"
            )
        return meta

    def read(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        """Into the very ``tensors``."""
        self.strategy.read(tensors, path)

    def write(self, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, object]) -> None:
        """The checkpoint of ``step``. Raises CheckpointError, with the former ones untouched, if it cannot be."""
        path = self.folder / f"{step:0{DIGITS}d}"
        part = path.with_suffix(".part")
        try:
            self.strategy.on_main(lambda: _empty(part))
            self.strategy.write(tensors, part)
            self.strategy.on_main(
                lambda: self._finish(part, path, {**meta, "step": step, "files": self.strategy.files})
            )
        except (OSError, SafetensorError, CheckpointException) as error:
            shutil.rmtree(part, ignore_errors=True)
            last = self.latest
            left = "there is none before it" if last is None else f"{last}, of step {int(last.name)}, is whole"
            raise CheckpointError(
                f"the checkpoint of step {step} was not written ({' '.join(str(error).split())}); {left}; make room "
                "and start the same command again"
            ) from error

    def _finish(self, part: Path, path: Path, meta: Mapping[str, object]) -> None:
        write_text(part / META_FILE, json.dumps(meta, indent=1) + "\n")
        replace_folder(part, path)
        for old in sorted(whole_folders(self.folder))[: -self.keep]:
            shutil.rmtree(old)


def whole_folders(folder: Path) -> list[Path]:
    """Checkpoints in ``folder`` that were moved into place."""
    return [path.parent for path in folder.glob(f"*/{META_FILE}") if path.parent.name.isdigit()]


def write_text(path: Path, text: str) -> None:
    """Written and flushed to the disk."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def replace_folder(part: Path, path: Path) -> None:
    """Move a folder into place; one that a run before left there is of the same step, and goes first."""
    if path.exists():
        shutil.rmtree(path)
    part.replace(path)
    if os.name == "posix":
        above = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(above)
        finally:
            os.close(above)


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
