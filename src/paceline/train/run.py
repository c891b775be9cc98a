"""A whole run from its configuration: build, train, write out the best with its card. Knows no command line."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import psutil
import torch

from paceline import __version__
from paceline.draft_heads.files import save_head
from paceline.models.fingerprint import fingerprint
from paceline.models.loading import save
from paceline.text.tokenizer import load_tokenizer
from paceline.train.cards import copy_companions
from paceline.train.checkpoints import write_text
from paceline.train.config import TrainConfig, dump
from paceline.train.data import Prepared, make_batches
from paceline.train.distributed import Strategy, open_strategy
from paceline.train.loggers import Logger, open_loggers
from paceline.train.progress import TrainProgress
from paceline.train.resume_check import check_same_run, set_aside
from paceline.train.run_cards import Recipe, run_card
from paceline.train.setup import Model, build_draft, build_target, build_task
from paceline.train.tasks import Distillation, Heads, NextToken, Task
from paceline.train.trainer import Score, Trainer
from paceline.train.validation import Validation

CONFIG_FILE = "config.yaml"
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What a dry run found."""

    num_trained: int  # parameters
    num_frozen: int
    tokens_per_step: int
    num_processes: int
    memory: float  # MiB, the most of the accelerator, else of the process as it is
    loss: float
    score: Score


@final
class Run:
    """Everything of a run, built; raises ValueError for whatever does not fit before any training.

    ``begins`` None goes on where there is a checkpoint; True begins anew, with what was there set aside; False demands
    a checkpoint.
    """

    def __init__(self, *, config: TrainConfig, begins: bool | None = None) -> None:
        self.config = config
        self.strategy = open_strategy(config.distributed, device=config.device)
        self.begins = begins
        device = self.strategy.device
        self.target = build_target(config.target, seed=config.seed, device=device)
        self.draft = None
        if config.draft is not None:
            self.draft = build_draft(config.draft, self.target, seed=config.seed, device=device)
        self.data = self.strategy.one_by_one(self._prepare)  # the first one tokenises, the others find it done
        _check_lengths(config, self.target)
        self.task = build_task(config, self.target, self.draft)
        self.num_frozen = 0 if self.task.frozen is None else _size(self.task.frozen)
        self.num_trained = sum(parameter.numel() for parameter in self.task.trained().values())
        # Of a frozen target this is known before; of one that learns only when it is written.
        self.fingerprint = None if self.task.frozen is None else fingerprint(self.task.frozen)

    def _prepare(self) -> Prepared:
        folder = self.target.folder
        return make_batches(
            self.config.data,
            tokenizer=None if folder is None else load_tokenizer(folder),
            vocab_size=self.target.lm.vocab_size,
            end_of_text=_end_of_text(self.target.raw),
            rows=self.config.batch.rows,
            length=self.config.batch.length,
            seed=self.config.seed,
        )

    def rehearse(self) -> Rehearsal:
        """One step and one validation; nothing is written."""
        trainer = self._trainer(log_every=self.config.schedule.steps + 1)
        progress = TrainProgress(total=1, done=0, shown=False)
        loss = trainer.advance(progress)
        assert loss is not None
        score = trainer.score()
        return Rehearsal(
            num_trained=self.num_trained,
            num_frozen=self.num_frozen,
            tokens_per_step=self.config.batch.rows * self.config.batch.length,
            num_processes=self.strategy.world,
            memory=_memory(self.strategy),
            loss=loss,
            score=score,
        )

    def train(self) -> Score:
        """Train to the end and write what was learned into the output folder; the score of what was kept."""
        output = self.config.output
        self.strategy.on_main(self._begin)
        loggers: list[Logger] = []
        if self.strategy.main:
            settings = self.config.model_dump(mode="json")
            loggers = open_loggers(self.config.loggers, folder=output, name=output.name, config=settings)
        trainer = self._trainer(loggers=loggers)
        try:
            score = trainer.run()
        finally:
            for logger in loggers:
                logger.close()
        task = trainer.finished()
        self.strategy.on_main(lambda: self._write_out(task, score))
        return score

    def _begin(self) -> None:
        """Write down what is run, once it is sure that a former run of the folder is the same."""
        output = self.config.output
        if self.begins:
            set_aside(output)
        check_same_run(output, self.config, self.data.manifest, demanded=self.begins is False)
        output.mkdir(parents=True, exist_ok=True)
        write_text(output / CONFIG_FILE, dump(self.config))
        self.data.manifest.write(output)

    def _trainer(self, *, loggers: Sequence[Logger] = (), log_every: int | None = None) -> Trainer:
        loop = self.config.loop
        origin = {
            "paceline": __version__,
            "commit": commit(),
            "fingerprint": None if self.fingerprint is None else self.fingerprint.fields(),
            "processes": self.strategy.world,
            "config": self.config.model_dump(mode="json"),
        }
        return Trainer(
            task=self.task,
            batches=self.data.batches,
            config=loop if log_every is None else loop.model_copy(update={"log_every": log_every}),
            folder=self.config.output,
            validate=Validating(validation=self._validation(self.data)),
            strategy=self.strategy,
            loggers=loggers,
            origin=origin,
        )

    def _validation(self, data: Prepared) -> Validation:
        section = self.config.validation
        if data.held_out is None:
            raise ValueError("data: nothing is held out, and a run is judged by that; raise data.validation.share")
        prompts = data.prompts(section.prompts, section.prompt_tokens)
        return Validation(section=section, prompts=prompts, held_out=data.held_out, seed=self.config.seed)

    def _write_out(self, task: Task, score: Score) -> None:
        """Heads and models as directories that serve, each with its card."""
        output, name = self.config.output, self.target_name
        recipe = Recipe(config=self.config, score=score, manifest=self.data.manifest, commit=commit())
        if isinstance(task, NextToken | Heads) and self.config.target.learns:
            learned = task.model if isinstance(task, NextToken) else task.target
            save(learned, self.target.raw, output / "target", dtype=torch.float32)
            self._complete(output / "target", recipe, kind="target")
        if isinstance(task, Distillation):
            assert self.draft is not None
            save(task.draft, self.draft.raw, output / "draft", dtype=torch.float32)
            self._complete(output / "draft", recipe, kind="draft")
        if isinstance(task, Heads):
            whose = fingerprint(task.target)
            for part in task.parts:
                save_head(part.head, output / part.name, target_name=name, fingerprint=whose)
                self._card(output / part.name, recipe, kind=part.name)

    def _complete(self, folder: Path, recipe: Recipe, *, kind: str) -> None:
        """A model needs its tokenizer beside it: the target's, if that has one."""
        if self.target.folder is not None:
            copy_companions(self.target.folder, folder)
        self._card(folder, recipe, kind=kind)

    def _card(self, folder: Path, recipe: Recipe, *, kind: str) -> None:
        write_text(folder / "README.md", run_card(recipe, name=kind, target=self.target_name))

    @property
    def target_name(self) -> str:
        """What heads and cards call it."""
        return self.config.target.path or str(self.config.output / "target")


@final
class Validating:
    """The part of a validation that fits what is trained."""

    def __init__(self, *, validation: Validation) -> None:
        self.validation = validation

    def __call__(self, task: Task) -> Score:
        """Measure ``task``."""
        if isinstance(task, NextToken):
            return self.validation.of_text(task)
        if isinstance(task, Distillation):
            return self.validation.of_draft(task)
        assert isinstance(task, Heads)
        return self.validation.of_heads(task)


def commit() -> str | None:
    """The commit of the folder that a run is started in, if that is under git."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def _check_lengths(config: TrainConfig, target: Model) -> None:
    longest, section = target.lm.max_positions, config.validation
    if config.batch.length > longest:
        raise ValueError(f"batch.length={config.batch.length}: the target reads {longest} tokens at most")
    needed = section.prompt_tokens + section.tokens + section.k
    if needed > longest:
        raise ValueError(
            f"validation: {section.prompt_tokens} + {section.tokens} tokens and {section.k} drafted ones exceed the "
            f"{longest} that the target reads; lower prompt_tokens or tokens"
        )
    if section.prompt_tokens > config.batch.length:
        raise ValueError(
            f"validation.prompt_tokens={section.prompt_tokens}: prompts are beginnings of rows, whose "
            f"batch.length is {config.batch.length}"
        )


def _end_of_text(raw: Mapping[str, Any]) -> int | None:
    """The first id that ends a text, of a config.json."""
    found = raw.get("eos_token_id")
    return found[0] if isinstance(found, list) else found


def _size(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _memory(strategy: Strategy) -> float:
    if strategy.device.type == "cpu":
        return psutil.Process().memory_info().rss / MIB
    return torch.accelerator.max_memory_allocated(strategy.device) / MIB
