"""A training run from its configuration: builds everything, trains, and writes the best weights with model cards."""

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import final

import psutil
import torch
from filelock import FileLock

from paceline import __version__
from paceline.core.context import Context
from paceline.core.request import Request
from paceline.models.fingerprint import fingerprint
from paceline.models.memory import keep_freed_memory
from paceline.text.tokenizer import load_tokenizer
from paceline.train.acceptance import requests_of
from paceline.train.config import TrainConfig
from paceline.train.config_file import dump
from paceline.train.data import PreparedData, make_batches
from paceline.train.data.document_list import DOCUMENTS_FILE, write_documents
from paceline.train.data.pair_encoder import read_pair_model
from paceline.train.files import write_text
from paceline.train.loop.distributed import Strategy, open_strategy
from paceline.train.loop.loggers import JsonLines, Logger, open_loggers
from paceline.train.loop.progress import TrainProgress
from paceline.train.loop.schedule import learning_rate_factor
from paceline.train.loop.trainer import Score, Trainer
from paceline.train.results import Results, git_commit
from paceline.train.resume_check import CONFIG_FILE, LOCK_FILE, STEPS, FormerRun, check_same_run, claim, set_aside
from paceline.train.setup import (
    build_draft,
    build_target,
    build_task,
    check_lengths,
    choose_draft_vocabs,
)
from paceline.train.states.layers import TargetLayers
from paceline.train.states.making import StoredBatches, StoredStates
from paceline.train.tasks import Task
from paceline.train.validation import Validation

MIB = 2**20
WARM_UP, TIMED = 2, 5  # steps of a probe
logger = logging.getLogger("paceline")


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """The result of a dry run."""

    num_trained: int  # parameters
    num_frozen: int
    tokens_per_step: int
    num_processes: int
    memory: float  # MiB, peak of the accelerator, else resident memory of the process
    loss: float
    score: Score
    stored: int | None = None  # bytes of hidden states that the run would store


@final
class Run:
    """A run, built. Raises ValueError for anything that does not fit, before any training.

    ``fresh`` None resumes from a checkpoint if there is one; True starts over and moves the former run aside; False
    requires a checkpoint.
    """

    def __init__(self, *, config: TrainConfig, fresh: bool | None = None) -> None:
        self.config, self.fresh = config, fresh
        self.resumed_from = 0  # steps that were done before ``train``
        self.strategy = open_strategy(config.distributed, device=config.device)
        device = self.strategy.device
        if device.type == "cpu":
            keep_freed_memory()
        self.target = build_target(config.target, seed=config.seed, device=device, draft=config.draft)
        self.draft = None
        if config.draft is not None:
            self.draft = build_draft(config.draft, self.target, seed=config.seed, device=device)
        self.data = self.strategy.main_first(self._prepare)  # the others find everything tokenised
        check_lengths(config, self.target.lm.max_positions)
        self.task = build_task(config, self.target, self.draft)
        choose_draft_vocabs(self.task, self.data, config.draft)
        self.states = None
        if config.hidden_states is not None:
            self.states = StoredStates(config, task=self.task, data=self.data, strategy=self.strategy)
        self._layers: TargetLayers | None = None  # once the target's are only loaded for validations
        # The fingerprint of a frozen target is known now, that of a trained one only at the end.
        self.fingerprint = None if self.task.frozen is None else fingerprint(self.task.frozen)

    def _prepare(self) -> PreparedData:
        folder, end = self.target.folder, self.target.raw.get("eos_token_id")
        self.pairs_for = read_pair_model(folder, self.target.raw, self.target.lm.config)
        return make_batches(
            self.config.data,
            tokenizer=None if folder is None else load_tokenizer(folder),
            vocab_size=self.target.lm.vocab_size,
            end_of_text=end[0] if isinstance(end, list) else end,
            rows=self.config.batch.rows,
            length=self.config.batch.length,
            seed=self.config.seed,
            pairs_for=self.pairs_for,
        )

    def requests(self) -> list[Request]:
        """What a validation decodes: held-out prompts, or held-out sources up to the end of the output."""
        section, inputs = self.config.validation, list(self.target.lm.context_inputs)
        if not inputs:
            return requests_of(self.data.prompts(section.prompts, section.prompt_tokens), section.tokens)
        assert self.pairs_for is not None
        end = self.pairs_for.end
        return [
            Request(tokens=tokens, max_tokens=section.tokens, stop_tokens=end, context=Context({inputs[0]: source}))
            for tokens, source in self.data.openings(section.prompts)
        ]

    def dry_run(self) -> DryRun:
        """One step and one validation; writes nothing."""
        trainer = self._trainer(silent_for=1)
        loss = trainer.advance(TrainProgress(total=1, done=0, shown=False))
        assert loss is not None
        score, frozen = trainer.score(), self.task.frozen
        return DryRun(
            num_trained=sum(parameter.numel() for parameter in self.task.trained().values()),
            num_frozen=0 if frozen is None else sum(parameter.numel() for parameter in frozen.parameters()),
            tokens_per_step=self.config.batch.rows * self.config.batch.length,
            num_processes=self.strategy.world,
            memory=_memory(self.strategy),
            loss=loss,
            score=score,
            stored=None if self.states is None else self.states.missing_bytes,
        )

    def probe(self, clock: Callable[[], float], *, warm_up: int = WARM_UP, timed: int = TIMED) -> tuple[float, float]:
        """Seconds of a step, the median of ``timed``, and of a validation; writes nothing but hidden states.

        With stored states the configuration has at least as many steps as are taken here, for their rows are what is
        stored.
        """
        if self.states is not None:
            self._store_states(self.states)
        trainer = self._trainer(silent_for=warm_up + timed)
        progress = TrainProgress(total=warm_up + timed, done=0, shown=False)

        def seconds(call: Callable[[], object]) -> float:
            start = clock()
            call()
            return clock() - start

        times = [seconds(lambda: trainer.advance(progress)) for _ in range(warm_up + timed)]
        return median(times[warm_up:]), seconds(trainer.score)

    def train(self) -> Score:
        """Train to the end and write the best weights into the output folder; returns their score.

        Raises ValueError, before anything is written, if another process trains into that folder.
        """
        output = self.config.output
        lock = FileLock(output / LOCK_FILE)
        self.strategy.on_main(lambda: claim(lock))
        try:
            return self._train(output)
        finally:
            lock.release()

    def _train(self, output: Path) -> Score:
        self.resumed_from = self.strategy.on_main(self._begin)
        loggers: list[Logger] = []
        if self.strategy.main:
            settings = self.config.model_dump(mode="json")
            loggers = open_loggers(self.config.loggers, folder=output, name=output.name, config=settings)
        if self.states is not None:
            self._store_states(self.states)
        trainer = self._trainer(loggers=loggers)
        try:
            score = trainer.run()
        finally:
            for logger in loggers:
                logger.close()
        task = trainer.finished()
        results = Results(
            config=self.config,
            target=self.target,
            draft=self.draft,
            manifest=self.data.manifest,
            fingerprint=self.fingerprint,
        )
        self.strategy.on_main(lambda: results.write(task, score))
        return score

    def _store_states(self, states: StoredStates) -> None:
        """Store what is missing; from then on no step runs the target, whose layers leave the memory."""
        assert self.task.frozen is not None and self.target.folder is not None
        states.make()
        self._layers = TargetLayers(self.task.frozen, self.target.folder, users=self.task)

    def _validate(self, validation: Validation, task: Task) -> Score:
        with nullcontext() if self._layers is None else self._layers.loaded():
            return validation(task)

    def _begin(self) -> int:
        """Write configuration, manifest and list of documents, after checking that a former run is the same.

        Returns how many steps it has done.
        """
        output = self.config.output
        if self.fresh:
            set_aside(output)
        former = check_same_run(output, self.config, self.data.manifest, required=self.fresh is False)
        output.mkdir(parents=True, exist_ok=True)
        if former is not None and former.schedule.steps < self.config.schedule.steps:
            self._lengthen(former)
        write_text(output / CONFIG_FILE, dump(self.config))
        self.data.manifest.write(output)
        if former is None or not (output / DOCUMENTS_FILE).exists():
            write_documents(output, self.data.sources)
        return 0 if former is None else former.done

    def _lengthen(self, former: FormerRun) -> None:
        """Record and say that the learning rate goes on by another schedule than the run began with."""
        schedule, rate = self.config.schedule, self.config.optimiser.learning_rate
        before, after = (rate * learning_rate_factor(one, former.done) for one in (former.schedule, schedule))
        lines = JsonLines(folder=self.config.output)
        lines.begin(former.done)
        lines.log(former.done, {STEPS: schedule.steps})
        logger.warning(
            f"lengthened from {former.schedule.steps} to {schedule.steps} steps: it goes on after step {former.done} "
            f"by the longer schedule, with a learning rate of {after:.3g} where the shorter had {before:.3g}; a run "
            f"of {schedule.steps} steps from the start gives other weights"
        )

    def _trainer(self, *, loggers: Sequence[Logger] = (), silent_for: int = 0) -> Trainer:
        """``silent_for`` so many steps it logs nothing: the last of a run, which always is, comes later."""
        loop, section = self.config.loop, self.config.validation
        if silent_for:
            schedule = loop.schedule.model_copy(update={"steps": max(loop.schedule.steps, silent_for + 1)})
            loop = loop.model_copy(update={"log_every": silent_for + 1, "schedule": schedule})
        if self.data.held_out is None:
            raise ValueError(
                "data: nothing is held out, and validation needs held-out data; raise data.validation.share"
            )
        validation = Validation(
            section=section,
            requests=self.requests(),
            held_out=self.data.held_out,
            seed=self.config.seed,
        )
        origin = {
            "paceline": __version__,
            "commit": git_commit(),
            "fingerprint": None if self.fingerprint is None else self.fingerprint.fields(),
            "processes": self.strategy.world,
            "config": self.config.model_dump(mode="json"),
        }
        stored = None if self._layers is None else self.states
        return Trainer(
            task=self.task,
            batches=self.data.batches if stored is None else StoredBatches(self.data.batches, stored.folder),
            config=loop,
            folder=self.config.output,
            validate=partial(self._validate, validation),
            strategy=self.strategy,
            loggers=loggers,
            origin=origin,
        )


def _memory(strategy: Strategy) -> float:
    if strategy.device.type == "cpu":
        return psutil.Process().memory_info().rss / MIB
    return torch.accelerator.max_memory_allocated(strategy.device) / MIB
