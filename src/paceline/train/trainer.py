"""The training loop: resumable, atomic, logged. Knows nothing of what is trained or on what."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.models.decoder import DecoderLM
from paceline.train.batches import Batches
from paceline.train.objectives import Objective


class TrainConfig(BaseModel):
    """One training run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: PositiveInt
    learning_rate: PositiveFloat
    warmup: PositiveInt = 100
    weight_decay: float = 0.1
    clip: PositiveFloat = 1.0
    dropout: float = 0.0
    seed: int = 0
    log_every: PositiveInt = 20
    validate_every: PositiveInt = 100
    checkpoint_every: PositiveInt = 100
    compile: bool = False


class Trainer:
    """AdamW with warm-up and a cosine to a tenth, bf16 autocast, best-of-validation kept."""

    def __init__(
        self,
        model: DecoderLM,
        objective: Objective,
        batches: Batches,
        config: TrainConfig,
        *,
        folder: Path,
        validate: Callable[[DecoderLM], float],
    ) -> None:
        self.model, self.objective, self.batches, self.config = model, objective, batches, config
        self.folder, self.validate = folder, validate
        folder.mkdir(parents=True, exist_ok=True)
        decayed = [p for p in model.parameters() if p.dim() >= 2]
        others = [p for p in model.parameters() if p.dim() < 2]
        groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.parameters = decayed + others
        self.optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95))
        self.step = 0
        self.best = float("inf")

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    @property
    def best_weights(self) -> Path:
        return self.folder / "best.safetensors"

    def run(self) -> float:
        """Train from the last checkpoint, if any, to the end; load the best weights and return their validation.

        Raises ValueError if no validation was a finite number.
        """
        self._resume()
        device = self.model.device
        loss_of = torch.compile(self.objective) if self.config.compile else self.objective
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        began, seen = time.perf_counter(), 0
        with Progress(*columns, disable=not os.isatty(1)) as progress:
            task = progress.add_task("training", total=self.config.steps, completed=self.step)
            while self.step < self.config.steps:
                self.model.train()
                self.model.dropout = self.config.dropout
                tokens = self.batches.batch(self.step, range(self.batches.rows)).tokens.to(device, non_blocking=True)
                loss = self._update(loss_of, tokens)
                self.step += 1
                seen += tokens.numel()
                progress.update(task, completed=self.step)
                if self.step % self.config.log_every == 0:
                    rate = seen / (time.perf_counter() - began)
                    self._log(step=self.step, loss=float(loss), tokens_per_second=round(rate))
                    progress.update(task, description=f"loss {float(loss):.3f}")
                if self.step % self.config.validate_every == 0 or self.step == self.config.steps:
                    self._validate()
                if self.step % self.config.checkpoint_every == 0 or self.step == self.config.steps:
                    self._save()
        if self.best == float("inf"):
            raise ValueError("no validation was a finite number: the run diverged; lower learning_rate")
        self.model.load_state_dict(load_file(self.best_weights, device=str(device)))
        self.model.dropout = 0.0
        self.model.eval()
        return self.best

    def _update(self, loss_of: Callable[[DecoderLM, Tensor], Tensor], tokens: Tensor) -> Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate()
        if self.config.dropout > 0:  # a function of the step, so that a resumed run drops what an uncut one would
            torch.manual_seed(self.config.seed * 1_000_003 + self.step)
        with torch.autocast(tokens.device.type, torch.bfloat16):
            loss = loss_of(self.model, tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def _rate(self) -> float:
        done = self.step / self.config.steps
        cosine = 0.1 + 0.45 * (1 + torch.tensor(done * torch.pi).cos().item())
        return self.config.learning_rate * min(1.0, (self.step + 1) / self.config.warmup) * cosine

    def _validate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            value = self.validate(self.model)
        self._log(step=self.step, validation=value)
        if value < self.best:
            self.best = value
            write_atomically(self.best_weights, dict(self.model.state_dict()))

    def _log(self, **record: float) -> None:
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _save(self) -> None:
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for index, parameter in enumerate(self.parameters):
            for name, value in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{index}.{name}"] = value
        write_atomically(self.checkpoint, tensors, {"step": str(self.step), "best": repr(self.best)})

    def _resume(self) -> None:
        if not self.checkpoint.exists():
            return
        from_file = load_file(self.checkpoint, device=str(self.model.device))
        self.model.load_state_dict({n[6:]: t for n, t in from_file.items() if n.startswith("model.")})
        for index, parameter in enumerate(self.parameters):
            prefix = f"optimizer.{index}."
            state = {n[len(prefix) :]: t for n, t in from_file.items() if n.startswith(prefix)}
            if state:
                state["step"] = state["step"].cpu()
                self.optimizer.state[parameter] = state
        meta = read_metadata(self.checkpoint)
        self.step, self.best = int(meta["step"]), float(meta["best"])


def write_atomically(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write safetensors beside ``path`` and move them into place, so that a crash leaves the former file whole."""
    fresh = path.with_suffix(".part")
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, fresh, metadata)
    with fresh.open("rb") as file:
        os.fsync(file.fileno())
    fresh.replace(path)


def read_metadata(path: Path) -> dict[str, str]:
    """The string table of a safetensors file."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(size)).get("__metadata__", {})
