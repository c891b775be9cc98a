"""The training loop: resumable, atomic, logged. Knows nothing of what is trained or on what."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from paceline.train.batches import Batches, TrainBatch
from paceline.train.best_weights import Best
from paceline.train.checkpoints import Checkpoints
from paceline.train.config import LoopConfig
from paceline.train.distributed import Single, Strategy
from paceline.train.loggers import JsonLines, Logger
from paceline.train.progress import TrainProgress
from paceline.train.replica import Averaged, Replica
from paceline.train.schedule import factor
from paceline.train.stopping import Stopped, Stopping
from paceline.train.tasks import Draws, Result, Task
from paceline.train.terms import num_learned


class Diverged(ValueError):
    """A loss or gradient that is no number, with the step, the rows and what is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a validation found; ``value`` decides which weights are kept, the more the better."""

    value: float | None  # None: nothing could be measured
    measures: Mapping[str, float] = field(default_factory=dict)
    length: float | None = None  # tokens per step, where it was acceptance that was measured


@final
class Trainer:
    """AdamW over a task; what it has learned is a function of task, batches and config, however often it was cut."""

    def __init__(
        self,
        *,
        task: Task,
        batches: Batches,
        config: LoopConfig,
        folder: Path,
        validate: Callable[[Task], Score],
        strategy: Strategy | None = None,
        loggers: Sequence[Logger] = (),
        origin: Mapping[str, object] | None = None,
    ) -> None:
        """``origin``: what is written into checkpoints of where the run comes from."""
        self.strategy = strategy or Single(device=torch.device("cpu"))
        self.batches, self.config, self.folder, self.validate = batches, config, folder, validate
        self.loggers, self.origin = loggers, dict(origin or {})
        parts = self.strategy.world * config.accumulate
        if batches.rows % parts:
            raise ValueError(
                f"batches of {batches.rows} rows cannot be shared by {self.strategy.world} processes in "
                f"{config.accumulate} parts: give a multiple of {parts}"
            )
        apart = self.strategy.sharded or config.ema is not None
        self.replica = Replica(task=task) if Replica.is_needed(task, apart=apart) else None
        if config.compile:
            task.compile()
        self.task = task
        self.wrapped = self.strategy.wrap(task)
        self.parameters = task.trained()
        self.optimizer = _optimizer(self.parameters, config)
        self.average = None if config.ema is None else Averaged(task=task, decay=config.ema)
        self.checkpoints = Checkpoints(
            folder=folder / "checkpoints", keep=config.checkpoints.keep, strategy=self.strategy
        )
        self.best = Best(folder=folder / "best", strategy=self.strategy)
        self.lines = JsonLines(folder=folder)
        self.step = 0

    def run(self) -> Score:
        """Train from the last checkpoint, if any, to the end; the best validation, whose weights ``finished`` has.

        Raises Diverged if a loss is no number, Stopped if a signal asked for an end, CheckpointError if the disk is
        full; all with what was kept before. Raises ValueError if no validation measured anything.
        """
        self.strategy.on_main(lambda: self.folder.mkdir(parents=True, exist_ok=True))
        self._resume()
        with ExitStack() as stack:
            stop = stack.enter_context(Stopping(patient=self.strategy.world > 1))
            shown = self.strategy.main
            steps = self.config.schedule.steps
            progress = stack.enter_context(TrainProgress(total=steps, done=self.step, shown=shown))
            while self.step < steps:
                if self.advance(progress, stopping=stop.asked) is None:
                    self._save()
                    raise Stopped(
                        f"stopped after step {self.step} of {steps}, which is saved in {self.checkpoints.folder}; the "
                        "same command goes on there"
                    )
                if self.step % self.config.validate_every == 0 or self.step == steps:
                    self._validate(progress)
                if self.step % self.config.checkpoints.every == 0 or self.step == steps:
                    self._save()
        if self.best.value is None:
            raise ValueError(
                "no validation measured anything: the run diverged or every text loops; lower learning_rate"
            )
        return Score(value=self.best.value, measures=self.best.measures)

    def advance(self, progress: TrainProgress, *, stopping: bool = False) -> float | None:
        """One step, and its loss per learned token. Unless any process is ``stopping``: then nothing, and None."""
        parts = self._parts()
        counts = torch.stack([num_learned(batch) for _, batch in parts]).sum().double()
        learned, asked = self.strategy.total(
            torch.stack((counts, torch.tensor(float(stopping), dtype=torch.float64)))
        ).tolist()
        if asked:
            return None
        results = [self._learn(part, learned, last=index == len(parts) - 1) for index, part in enumerate(parts)]
        loss = float(self.strategy.total(torch.stack([_on_host(result.loss) for result in results]).sum()))
        loss /= max(learned, 1)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.config.optimiser.clip)
        norm = float(self.strategy.whole(norm))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._refuse(loss, parts, results)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.optimiser.learning_rate * factor(self.config.schedule, self.step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.task)
        self.step += 1
        progress.advance(loss=loss, num_tokens=self.batches.rows * (parts[0][1].tokens.shape[1] - 1))
        if self.step % self.config.log_every == 0 or self.step == self.config.schedule.steps:
            self._log_step(loss, norm, results, progress)
        return loss

    def score(self) -> Score:
        """What the weights of now are worth. Called by all processes."""
        task = self.served().eval()
        with torch.no_grad():
            return self.strategy.on_main(lambda: self.validate(task))

    def served(self) -> Task:
        """The task with weights as they would be served. Called by all processes."""
        tensors = self.parameters if self.average is None else self.average.tensors
        return self.task if self.replica is None else self.replica.take(dict(tensors), self.strategy)

    def finished(self) -> Task:
        """The task with the best weights."""
        task = self.served()
        self.best.load(task.trained())
        return task.eval()

    def _parts(self) -> list[tuple[range, TrainBatch]]:
        """This process's rows of the step, in the parts that are learned one after another."""
        each = self.batches.rows // (self.strategy.world * self.config.accumulate)
        first = self.strategy.rank * self.config.accumulate
        spans = [range(part * each, (part + 1) * each) for part in range(first, first + self.config.accumulate)]
        return [(span, self.batches.batch(self.step, span)) for span in spans]

    def _learn(self, part: tuple[range, TrainBatch], learned: float, *, last: bool) -> Result:
        rows, batch = part
        device = self.strategy.device
        draws = Draws(seed=self.config.seed, step=self.step, first_row=rows.start)
        self.wrapped.train()
        with self.strategy.reducing(self.wrapped, last=last):
            with torch.autocast(device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
                result: Result = self.wrapped(_moved(batch, device), draws)
            # Gradients are averaged over processes: what belongs to the whole batch is a sum.
            (result.loss * (self.strategy.world / max(learned, 1))).backward()
        return result

    def _refuse(self, loss: float, parts: Sequence[tuple[range, TrainBatch]], results: Sequence[Result]) -> None:
        found = zip(parts, results, strict=True)
        here = [rows[at] for (rows, _), result in found for at in _not_finite(result.rows)]
        rows = self.strategy.gathered(here)
        what = f"a loss of {loss}" if rows else "gradients that are no numbers"
        where = f" in rows {', '.join(map(str, rows))}" if rows else ""
        last = self.checkpoints.latest
        left = "there is no checkpoint" if last is None else f"the last good checkpoint is {last}"
        raise Diverged(
            f"step {self.step + 1} gave {what}{where} of its batch of {self.batches.rows} (batch {self.step}, counted "
            f"from 0); {left}; look at those rows, or lower optimiser.learning_rate"
        )

    def _validate(self, progress: TrainProgress) -> None:
        score = self.score()
        self._log(score.measures)
        progress.accepted(score.length)
        if score.value is not None and math.isfinite(score.value):
            weights = self.task if self.replica is None else self.replica.task
            self.best.offer(score.value, score.measures, weights.trained(), step=self.step)

    def _log_step(self, loss: float, norm: float, results: Sequence[Result], progress: TrainProgress) -> None:
        values = {"loss": loss, "gradient_norm": norm, "learning_rate": self.optimizer.param_groups[0]["lr"]}
        for name in results[0].measures:
            sums = self.strategy.total(torch.stack([_on_host(result.measures[name]) for result in results]).sum(0))
            means = (sums[0] / sums[1].clamp(min=1e-9)).tolist()
            names = [name] if len(means) == 1 else [f"{name}.{depth + 1}" for depth in range(len(means))]
            values.update(zip(names, means, strict=True))
        self._log(values | {"tokens_per_second": round(progress.speed)})

    def _log(self, values: Mapping[str, float]) -> None:
        if self.strategy.main:
            self.lines.log(self.step, values)
            for logger in self.loggers:
                logger.log(self.step, values)

    def _state(self) -> dict[str, Tensor]:
        """Every tensor that going on needs, those that the run holds themselves."""
        tensors = {f"model.{name}": parameter.detach() for name, parameter in self.parameters.items()}
        for name, parameter in self.parameters.items():
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{name}.{key}"] = value
        if self.average is not None:
            tensors.update({f"average.{name}": tensor for name, tensor in self.average.tensors.items()})
        return tensors

    def _save(self) -> None:
        if self.step == 0:
            return
        meta = {"best": self.best.record(), **self.origin}
        self.checkpoints.write(self.step, self._state(), meta)

    @torch.no_grad()
    def _resume(self) -> None:
        last = self.checkpoints.latest
        if last is not None:
            meta = self.checkpoints.meta(last)
            self.checkpoints.read(last, self._state())
            self.step = meta["step"]
            self.best.restore(meta["best"])
        self.strategy.on_main(lambda: self.lines.begin(self.step))


def _optimizer(parameters: Mapping[str, nn.Parameter], config: LoopConfig) -> torch.optim.AdamW:
    """AdamW whose state is there from the beginning, so that it can be read into."""
    options = config.optimiser
    decayed = [parameter for parameter in parameters.values() if parameter.dim() >= 2]
    others = [parameter for parameter in parameters.values() if parameter.dim() < 2]
    groups = [{"params": decayed, "weight_decay": options.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=options.learning_rate, betas=options.betas)
    for parameter in parameters.values():
        zeros = {key: torch.zeros_like(parameter, requires_grad=False) for key in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.tensor(0.0), **zeros}
    return optimizer


def _moved(batch: TrainBatch, device: torch.device) -> TrainBatch:
    segment = None if batch.segment is None else batch.segment.to(device, non_blocking=True)
    hidden = None if batch.hidden is None else {tap: state.to(device) for tap, state in batch.hidden.items()}
    tokens, learned = (value.to(device, non_blocking=True) for value in (batch.tokens, batch.learned))
    return replace(batch, tokens=tokens, learned=learned, segment=segment, hidden=hidden)


def _on_host(value: Tensor) -> Tensor:
    return value.detach().cpu().double()  # some accelerators have no float64


def _not_finite(rows: Tensor) -> list[int]:
    return [at for at, value in enumerate(rows.tolist()) if not math.isfinite(value)]
