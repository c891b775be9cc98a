"""The best weights of a run so far. Knows nothing of how good is measured.

A folder named by its step: weights, and what was measured with them. The former one goes when a better one is whole.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.train.checkpoints import DIGITS, META_FILE, CheckpointError, replace_folder, whole_folders, write_text
from paceline.train.distributed import Strategy

WEIGHTS_FILE = "weights.safetensors"


@final
class Best:
    """Keeps the weights of the highest value."""

    def __init__(self, *, folder: Path, strategy: Strategy) -> None:
        self.folder, self.strategy = folder, strategy
        self.value: float | None = None
        self.measures: Mapping[str, float] = {}

    def record(self) -> dict[str, Any]:
        """What a checkpoint says of it."""
        return {"value": self.value, "measures": dict(self.measures)}

    def restore(self, record: Mapping[str, Any]) -> None:
        """Take on what ``record`` gave."""
        self.value, self.measures = record["value"], record["measures"]

    def offer(self, value: float, measures: Mapping[str, float], weights: Mapping[str, Tensor], *, step: int) -> None:
        """Keep whole ``weights`` if nothing before was as good. Raises CheckpointError if they cannot be written."""
        if self.value is not None and value <= self.value:
            return
        try:
            self.strategy.on_main(lambda: self._write(value, measures, weights, step))
        except OSError as error:
            raise CheckpointError(f"the best weights, of step {step}, were not written ({error}); make room") from error
        self.value, self.measures = value, measures

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Into the very tensors ``weights``."""
        found = load_file(max(whole_folders(self.folder)) / WEIGHTS_FILE)
        for name, tensor in weights.items():
            tensor.copy_(found[name])

    def _write(self, value: float, measures: Mapping[str, float], weights: Mapping[str, Tensor], step: int) -> None:
        path = self.folder / f"{step:0{DIGITS}d}"
        part = path.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        save_file(tensors, part / WEIGHTS_FILE)
        write_text(part / META_FILE, json.dumps({"step": step, "value": value, "measures": dict(measures)}) + "\n")
        replace_folder(part, path)
        for old in whole_folders(self.folder):
            if old != path:
                shutil.rmtree(old)
