"""The training loop over a task, with checkpoints, validation and logs."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import torch
from torch import Tensor
from torch.optim import Muon

from paceline.train.batches import Batches, TrainBatch
from paceline.train.loop.best_weights import BestWeights
from paceline.train.loop.checkpoints import Checkpoints
from paceline.train.loop.config import LoopConfig
from paceline.train.loop.distributed import Single, Strategy
from paceline.train.loop.float32_products import fast_products
from paceline.train.loop.loggers import JsonLines, Logger
from paceline.train.loop.optimizers import make_optimizers, part_of
from paceline.train.loop.progress import TrainProgress
from paceline.train.loop.schedule import learning_rate_factor
from paceline.train.loop.stopping import Stopped, StopSignals
from paceline.train.loop.weight_copies import ServedCopy, WeightAverage
from paceline.train.tasks.base import StepRandomness, Task, TaskOutput
from paceline.train.tasks.joint import TRUNK
from paceline.train.tasks.terms import num_learned

UNMEASURED = 0.0  # the value of weights whose acceptance no validation could measure: below every one that is measured
logger = logging.getLogger("paceline")


class Diverged(ValueError):
    """A loss or gradient that is NaN or infinite; the message names the step, the rows and the last checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The result of a validation; the weights with the highest ``value`` are saved."""

    value: float | None  # None: nothing could be measured
    metrics: Mapping[str, float] = field(default_factory=dict)
    length: float | None = None  # tokens per step, if acceptance was measured


@final
class Trainer:
    """Trains a task. The weights are a function of task, batches and config, however often the run is interrupted."""

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
        """``origin``: what checkpoints record about the run."""
        self.strategy = strategy or Single(device=torch.device("cpu"))
        self.batches, self.config, self.folder, self.validate = batches, config, folder, validate
        self.loggers, self.origin = loggers, dict(origin or {})
        num_parts = self.strategy.world * config.accumulate
        if batches.rows % num_parts:
            raise ValueError(
                f"batches of {batches.rows} rows cannot be shared by {self.strategy.world} processes in "
                f"{config.accumulate} parts: give a multiple of {num_parts}"
            )
        separate = self.strategy.sharded or config.ema is not None
        self.served_copy = ServedCopy(task=task) if ServedCopy.is_needed(task, separate=separate) else None
        if config.compile:
            task.compile()
        self.task = task
        self.wrapped = self.strategy.wrap(task)
        self.parameters = task.trained()
        self.optimizers = make_optimizers(self.parameters, config.optimiser)
        self.average = None if config.ema is None else WeightAverage(task=task, decay=config.ema)
        self.checkpoints = Checkpoints(
            folder=folder / "checkpoints", keep=config.checkpoints.keep, strategy=self.strategy
        )
        self.best = BestWeights(folder=folder / "best", strategy=self.strategy)
        self.lines = JsonLines(folder=folder)
        self.step = 0

    def run(self) -> Score:
        """Train from the last checkpoint, if any, to the end. Returns the best validation (see ``finished``).

        Raises Diverged, Stopped after a signal, CheckpointError if a checkpoint cannot be written; earlier checkpoints
        stay. Raises ValueError if no validation gave a number.
        """
        self.strategy.on_main(lambda: self.folder.mkdir(parents=True, exist_ok=True))
        self._resume()
        with ExitStack() as stack:
            signals = stack.enter_context(StopSignals(ignore_repeats=self.strategy.world > 1))
            steps = self.config.schedule.steps
            progress = stack.enter_context(TrainProgress(total=steps, done=self.step, shown=self.strategy.main))
            while self.step < steps:
                if self.advance(progress, stop=signals.requested) is None:
                    self._save()
                    raise Stopped(
                        f"stopped after step {self.step} of {steps}, which is saved in {self.checkpoints.folder}; the "
                        "same command resumes from it"
                    )
                if self.step % self.config.validate_every == 0 or self.step == steps:
                    self._validate(progress)
                if self.step % self.config.checkpoints.every == 0 or self.step == steps:
                    self._save()
        if self.best.value is None:
            raise ValueError("no validation gave a number: the run diverged; lower optimiser.learning_rate")
        return Score(value=self.best.value, metrics=self.best.metrics)

    def advance(self, progress: TrainProgress, *, stop: bool = False) -> float | None:
        """Run a step and return its loss per learned token; None, without a step, if any process is to ``stop``."""
        parts = self._micro_batches()
        counts = torch.stack([num_learned(batch) for _, batch in parts]).sum().double()
        learned, stopping = self.strategy.all_reduce(
            torch.stack((counts, torch.tensor(float(stop), dtype=torch.float64)))
        ).tolist()
        if stopping:
            return None
        outputs = [self._backward(part, learned, last=index == len(parts) - 1) for index, part in enumerate(parts)]
        loss = float(self.strategy.all_reduce(torch.stack([_on_host(output.loss) for output in outputs]).sum()))
        loss /= max(learned, 1)
        self._drop_untrained()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.config.optimiser.clip)
        norm = float(self.strategy.full_tensor(norm))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._raise_diverged(loss, parts, outputs)
        factor = learning_rate_factor(self.config.schedule, self.step)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["rate"] * factor * self.task.relative_rate(group["part"], self.step)
            # Muon's products are of bfloat16 in either precision.
            with fast_products(self.strategy.device) if isinstance(optimizer, Muon) else nullcontext():
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.task)
        self.step += 1
        progress.advance(loss=loss, num_tokens=self.batches.rows * (parts[0][1].tokens.shape[1] - 1))
        if self.step % self.config.log_every == 0 or self.step == self.config.schedule.steps:
            self._log_step(loss, norm, outputs, progress)
        return loss

    def score(self) -> Score:
        """Validate the current weights. A collective call."""
        task = self.served().eval()
        with torch.no_grad(), self._products():
            return self.strategy.on_main(lambda: self.validate(task))

    def served(self) -> Task:
        """The task with the current weights, as they would be served. A collective call."""
        tensors = self.parameters if self.average is None else self.average.tensors
        return self.task if self.served_copy is None else self.served_copy.load(dict(tensors), self.strategy)

    def finished(self) -> Task:
        """The task with the best weights."""
        task = self.served()
        self.best.load(task.trained())
        return task.eval()

    def _products(self) -> AbstractContextManager[object]:
        """Within, products of bfloat16 are fast; a run in float32 has none, and would pay for looking."""
        return fast_products(self.strategy.device) if self.config.precision == "bf16" else nullcontext()

    def _micro_batches(self) -> list[tuple[range, TrainBatch]]:
        """This process's rows of the step, by micro-batch."""
        size = self.batches.rows // (self.strategy.world * self.config.accumulate)
        first = self.strategy.rank * self.config.accumulate
        spans = [range(part * size, (part + 1) * size) for part in range(first, first + self.config.accumulate)]
        return [(span, self.batches.batch(self.step, span)) for span in spans]

    def _backward(self, part: tuple[range, TrainBatch], learned: float, *, last: bool) -> TaskOutput:
        rows, batch = part
        device = self.strategy.device
        randomness = StepRandomness(seed=self.config.seed, step=self.step, first_row=rows.start)
        self.wrapped.train()
        with self.strategy.gradient_sync(self.wrapped, last=last), self._products():
            with torch.autocast(device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
                output: TaskOutput = self.wrapped(batch.to(device), randomness)
            # Gradients are averaged over processes, but the loss is a sum over the whole batch.
            (output.loss * (self.strategy.world / max(learned, 1))).backward()
        return output

    def _drop_untrained(self) -> None:
        """Forget the gradients of parts that this step does not train: the optimiser must know nothing of them."""
        for name, parameter in self.parameters.items():
            if self.task.relative_rate(part_of(name), self.step) == 0:
                parameter.grad = None

    def _raise_diverged(
        self, loss: float, parts: Sequence[tuple[range, TrainBatch]], outputs: Sequence[TaskOutput]
    ) -> None:
        local = [
            rows[at]
            for (rows, _), output in zip(parts, outputs, strict=True)
            for at, value in enumerate(output.rows.tolist())
            if not math.isfinite(value)
        ]
        rows = self.strategy.all_gather(local)
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
        self._log(score.metrics)
        progress.show_acceptance(score.length)
        value = score.value
        last = self.step == self.config.schedule.steps
        if value is None and last and self.best.value in (None, UNMEASURED):
            if self.strategy.main:
                logger.warning(
                    "no validation measured acceptance, for every greedy output loops: the weights of the last step "
                    "are written; train the target further, or validate with other prompts or fewer tokens"
                )
            self.best.value, value = None, UNMEASURED  # of a longer run, in place of those that ended a shorter one
        if value is not None and math.isfinite(value):
            task = self.task if self.served_copy is None else self.served_copy.task
            value = float(self.step) if task.in_stages else value
            self.best.update(value, score.metrics, task.trained(), step=self.step)

    def _log_step(self, loss: float, norm: float, outputs: Sequence[TaskOutput], progress: TrainProgress) -> None:
        rates = {group["part"]: group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups}
        values = {"loss": loss, "gradient_norm": norm, "learning_rate": list(rates.values())[-1]}  # of the heads
        if self.task.in_stages:
            values["learning_rate.target"] = rates[TRUNK]
        for name in outputs[0].metrics:
            local = torch.stack([_on_host(output.metrics[name]) for output in outputs]).sum(0)
            sums = self.strategy.all_reduce(local)
            means = (sums[0] / sums[1].clamp(min=1e-9)).tolist()
            names = [name] if len(means) == 1 else [f"{name}.{depth + 1}" for depth in range(len(means))]
            values.update(zip(names, means, strict=True))
        self._log(values | {"tokens_per_second": round(progress.tokens_per_second)})

    def _log(self, values: Mapping[str, float]) -> None:
        if self.strategy.main:
            for logger in (self.lines, *self.loggers):
                logger.log(self.step, values)

    def _state(self) -> dict[str, Tensor]:
        """Every tensor of a checkpoint, not copied."""
        tensors = {f"model.{name}": parameter.detach() for name, parameter in self.parameters.items()}
        states = {parameter: state for optimizer in self.optimizers for parameter, state in optimizer.state.items()}
        for name, parameter in self.parameters.items():
            tensors.update({f"optimizer.{name}.{key}": value for key, value in states[parameter].items()})
        if self.average is not None:
            tensors.update({f"average.{name}": tensor for name, tensor in self.average.tensors.items()})
        return tensors

    def _save(self) -> None:
        if self.step:
            self.checkpoints.write(self.step, self._state(), {"best": self.best.state(), **self.origin})

    @torch.no_grad()
    def _resume(self) -> None:
        last = self.checkpoints.latest
        if last is not None:
            meta = self.checkpoints.meta(last)
            self.checkpoints.read(last, self._state())
            self.step = meta["step"]
            self.best.load_state(meta["best"])
        self.strategy.on_main(lambda: self.lines.begin(self.step))


def _on_host(value: Tensor) -> Tensor:
    return value.detach().cpu().double()  # some accelerators have no float64
