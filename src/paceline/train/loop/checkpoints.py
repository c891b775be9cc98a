"""Checkpoints, written so that an interruption at any moment leaves a complete one.

A checkpoint is a folder named by its step: tensors, and meta.json. It is written under another name and then renamed.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from paceline.train.files import make_empty, replace_folder, write_text
from paceline.train.loop.distributed import Strategy

META_FILE = "meta.json"


class CheckpointError(OSError):
    """A checkpoint that could not be written; the message names the last complete one."""


@final
class Checkpoints:
    """The last ``keep`` checkpoints in ``folder``. An older one is deleted only when a newer one is complete."""

    def __init__(self, *, folder: Path, keep: int, strategy: Strategy) -> None:
        self.folder, self.keep, self.strategy = folder, keep, strategy

    @property
    def latest(self) -> Path | None:
        """The newest complete one."""
        return max(complete_folders(self.folder), default=None)

    def meta(self, path: Path) -> dict[str, Any]:
        """What was written beside the tensors. Raises ValueError for a tensor format this strategy cannot read."""
        meta = json.loads((path / META_FILE).read_text(encoding="utf-8"))
        if meta["files"] != self.strategy.files:
            strategies = {"safetensors": "single or ddp", "dcp": "fsdp2"}
            raise ValueError(
                f"{path} was written by distributed={strategies[meta['files']]}, and cannot be read by "
                f"{strategies[self.strategy.files]}: resume with the former, or start over with --fresh"
            )
        return meta

    def read(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        """Into ``tensors``, in place."""
        self.strategy.read(tensors, path)

    def write(self, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, object]) -> None:
        """Write the checkpoint of ``step``. Raises CheckpointError, with earlier ones untouched, on failure."""
        path = step_folder(self.folder, step)
        part = path.with_suffix(".part")
        try:
            self.strategy.on_main(lambda: make_empty(part))
            self.strategy.write(tensors, part)
            self.strategy.on_main(
                lambda: self._finish(part, path, {**meta, "step": step, "files": self.strategy.files})
            )
        except (OSError, SafetensorError, CheckpointException) as error:
            shutil.rmtree(part, ignore_errors=True)
            last = self.latest
            left = "there is none before it" if last is None else f"{last}, of step {int(last.name)}, is complete"
            raise CheckpointError(
                f"the checkpoint of step {step} was not written ({' '.join(str(error).split())}); {left}; make room "
                "and start the same command again"
            ) from error

    def _finish(self, part: Path, path: Path, meta: Mapping[str, object]) -> None:
        write_text(part / META_FILE, json.dumps(meta, indent=1) + "\n")
        replace_folder(part, path)
        for old in sorted(complete_folders(self.folder))[: -self.keep]:
            shutil.rmtree(old)


def step_folder(folder: Path, step: int) -> Path:
    """The folder of ``step`` in ``folder``."""
    return folder / f"{step:08d}"


def complete_folders(folder: Path) -> list[Path]:
    """The complete checkpoints in ``folder``."""
    return [path.parent for path in folder.glob(f"*/{META_FILE}") if path.parent.name.isdigit()]
