"""Measures the candidates of ``choice`` for a configuration without heads, and completes it with the chosen one."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from paceline.api.roofline import measure_model_rates
from paceline.draft_heads import DRAFT_HEADS
from paceline.models.work import forward_work
from paceline.train.choice import (
    PRIOR_K,
    Candidate,
    Estimate,
    Probe,
    candidates,
    choose,
    draft_work,
    estimate,
)
from paceline.train.config import TrainConfig
from paceline.train.config_file import ConfigError, read_raw, validate
from paceline.train.files import existing
from paceline.train.run import TIMED, WARM_UP, Run
from paceline.train.setup import build_target


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRecipe:
    """The whole configuration, what was compared, and why it won."""

    config: TrainConfig
    estimates: Sequence[Estimate]
    reason: str


def read_base(path: Path, settings: Sequence[str]) -> dict[str, Any]:
    """The configuration in ``path``. Raises ConfigError if it has what is to be chosen, or trains something else."""
    raw = read_raw(path, settings)
    target = raw.get("target")
    schedule = raw.get("schedule") or {}
    for given, name in (
        (raw.get("heads"), "heads"),
        (raw.get("draft"), "draft"),
        (schedule.get("steps"), "schedule.steps"),
    ):
        if given:
            raise ConfigError(f"{name}: it is what `paceline train auto` chooses; leave it out of {path}")
    if not isinstance(target, dict) or not target.get("path") or target.get("trained"):
        raise ConfigError("target: heads are chosen for a frozen target; give its path, without trained: true")
    return {**raw, "schedule": {**schedule}}


def choose_recipe(base: dict[str, Any], *, budget: float, progress: Callable[[str], None]) -> ChosenRecipe:
    """Time each candidate on this machine, with torch's threads, and choose. Writes nothing."""
    estimates: list[Estimate] = []
    first = _config(base, Candidate(kind="prophet", config={}), steps=1)
    target = build_target(first.target, seed=first.seed, device=torch.device(first.device or "cpu")).lm
    rates = measure_model_rates(target, progress=progress)
    work, tried = forward_work(target), candidates(target)
    for candidate in tried:
        progress(f"training {candidate.kind}")
        config = _config(base, candidate, steps=WARM_UP + TIMED)
        kind = DRAFT_HEADS.find(candidate.kind)
        head = kind.make(kind.Config.model_validate(candidate.config), target, generator=torch.Generator())
        step, validation, trained = _time(config)
        probe = Probe(step=step, validation=validation, num_parameters=trained, work=draft_work(head, target))
        estimates.append(
            estimate(
                candidate,
                probe,
                target=work,
                rates=rates,
                budget=budget,
                every=config.validation.every,
                tokens_per_step=config.batch.rows * config.batch.length,
            )
        )
    best = choose(estimates)
    reason = (
        f"chosen: {best.candidate.kind}, {best.steps} steps: the highest speed-up by the roofline, "
        f"{best.speed_up:.2f} with {best.num_draft_tokens} draft tokens, if it reaches the {best.tokens_per_step:.2f} "
        f"tokens per step (drafts of {PRIOR_K}) that the same kind reached on the embedded target (docs/zoo.md)"
    )
    return ChosenRecipe(config=_config(base, best.candidate, steps=best.steps), estimates=estimates, reason=reason)


def _time(config: TrainConfig) -> tuple[float, float, int]:
    """Seconds of a step and of a validation, and how many parameters are trained.

    Hidden states are stored, if at all, in a folder of their own: each candidate reads others.
    """
    with ExitStack() as stack:
        states = config.hidden_states
        if states is not None:
            beside = existing(states.folder.parent)
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="paceline-states-", dir=beside)))
            config = config.model_copy(update={"hidden_states": states.model_copy(update={"folder": folder})})
        run = Run(config=config)
        stack.callback(run.strategy.close)
        return *run.probe(), sum(parameter.numel() for parameter in run.task.trained().values())


def _config(base: dict[str, Any], candidate: Candidate, *, steps: int) -> TrainConfig:
    head = {"kind": candidate.kind, "config": dict(candidate.config)}
    return validate({**base, "heads": [head], "schedule": {**base["schedule"], "steps": steps}})
