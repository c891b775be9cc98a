"""Measures the candidates of ``choice`` for a configuration without heads, and completes it with the chosen one."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from paceline.api.loading import load
from paceline.core.request import Request
from paceline.draft_heads.files import save_head
from paceline.train.choice import PRIOR_K, Candidate, Estimate, Probe, candidates, choose, estimate
from paceline.train.config import TrainConfig
from paceline.train.config_file import ConfigError, read_raw, validate
from paceline.train.files import existing
from paceline.train.run import TIMED, WARM_UP, Run
from paceline.train.setup import build_target
from paceline.train.step_costs import measure_costs, steady_clock
from paceline.train.tasks import DraftHeadTask


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
    """Time each candidate on this machine, with torch's threads, and choose. Writes nothing that stays."""
    first = _config(base, Candidate(name="prophet", kind="prophet", config={}), steps=1)
    device = torch.device(first.device or "cpu")
    tried = candidates(build_target(first.target, seed=first.seed, device=device).lm, optimiser=first.optimiser.kind)
    with TemporaryDirectory(prefix="paceline-heads-", dir=existing(first.output.parent)) as name:
        folder, probes = Path(name), list[tuple[Probe, Request]]()
        for candidate in tried:
            progress(f"training {candidate.name}")
            probes.append(_train(_config(base, candidate, steps=WARM_UP + TIMED), folder / candidate.name))
        served = load(first.target.path or "", device=first.device)  # in the precision in which it is served
        estimates: list[Estimate] = []
        for candidate, (probe, request) in zip(tried, probes, strict=True):
            progress(f"drafting with {candidate.name}")
            costs = measure_costs(
                served, folder / candidate.name, request=request, clock=steady_clock(served.lm.device)
            )
            estimates.append(
                estimate(
                    candidate,
                    replace(probe, costs=costs),
                    budget=budget,
                    every=first.validation.every,
                    tokens_per_step=first.batch.rows * first.batch.length,
                )
            )
    best = choose(estimates)
    reason = (
        f"chosen: {best.candidate.name}, {best.steps} steps: the highest speed-up, {best.speed_up:.2f} with "
        f"{best.num_draft_tokens} draft tokens by what its steps cost here, if it reaches the "
        f"{best.tokens_per_step:.2f} tokens per step (drafts of {PRIOR_K}) that the same head reached on the embedded "
        "target (docs/zoo.md)"
    )
    return ChosenRecipe(config=_config(base, best.candidate, steps=best.steps), estimates=estimates, reason=reason)


def _train(config: TrainConfig, path: Path) -> tuple[Probe, Request]:
    """Train the head of ``config`` for the steps that are timed, and save it in the directory ``path``.

    Returns what that took, and a request of the validation.
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
        step, validation = run.probe(steady_clock(run.strategy.device))
        assert isinstance(run.task, DraftHeadTask) and run.fingerprint is not None
        head = run.task.trained_heads[0].head
        save_head(head, path, target_name=config.target.path or "", fingerprint=run.fingerprint)
        count = sum(parameter.numel() for parameter in run.task.trained().values())
        return Probe(step=step, validation=validation, num_parameters=count, costs=()), run.requests()[0]


def _config(base: dict[str, Any], candidate: Candidate, *, steps: int) -> TrainConfig:
    head = {"kind": candidate.kind, "config": dict(candidate.config)}
    return validate({**base, "heads": [head], "schedule": {**base["schedule"], "steps": steps}})
