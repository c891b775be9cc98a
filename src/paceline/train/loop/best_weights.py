"""The weights of the best validation so far.

A folder named by its step: weights, and their validation results. The previous one is deleted when a better one is
complete.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.train.files import make_empty, replace_folder, write_text
from paceline.train.loop.checkpoints import META_FILE, CheckpointError, complete_folders, step_folder
from paceline.train.loop.distributed import Strategy

WEIGHTS_FILE = "weights.safetensors"


@final
class BestWeights:
    """Saves the weights with the highest value."""

    def __init__(self, *, folder: Path, strategy: Strategy) -> None:
        self.folder, self.strategy = folder, strategy
        self.value: float | None = None
        self.metrics: Mapping[str, float] = {}

    def state(self) -> dict[str, Any]:
        """What a checkpoint records of it."""
        return {"value": self.value, "measures": dict(self.metrics)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` gave."""
        self.value, self.metrics = state["value"], state["measures"]

    def update(self, value: float, metrics: Mapping[str, float], weights: Mapping[str, Tensor], *, step: int) -> None:
        """Save ``weights`` if ``value`` is the highest so far. Raises CheckpointError if they cannot be written."""
        if self.value is not None and value <= self.value:
            return
        try:
            self.strategy.on_main(lambda: self._write(value, metrics, weights, step))
        except OSError as error:
            raise CheckpointError(f"the best weights, of step {step}, were not written ({error}); make room") from error
        self.value, self.metrics = value, metrics

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Into ``weights``, in place."""
        saved = load_file(max(complete_folders(self.folder)) / WEIGHTS_FILE)
        for name, tensor in weights.items():
            tensor.copy_(saved[name])

    def _write(self, value: float, metrics: Mapping[str, float], weights: Mapping[str, Tensor], step: int) -> None:
        path = step_folder(self.folder, step)
        part = path.with_suffix(".part")
        make_empty(part)
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, part / WEIGHTS_FILE)
        write_text(part / META_FILE, json.dumps({"step": step, "value": value, "measures": dict(metrics)}) + "\n")
        replace_folder(part, path)
        for old in complete_folders(self.folder):
            if old != path:
                shutil.rmtree(old)
