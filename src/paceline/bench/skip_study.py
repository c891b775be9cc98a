"""Trials of sets of sub-layers in a file, proposed by Bayesian optimisation (optuna). Measures nothing itself.

A trial is one line of the file, written as soon as it is done, so that an interrupted search goes on where it was.
Trials of other settings in the same file are another search.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import optuna
from optuna.distributions import CategoricalDistribution

from paceline.bench.raw import RUN, RawFile, Record, fingerprint
from paceline.models.sublayers import SkippedSublayers

TRIAL = "skip-trial"
NUM_FIRST = 16  # sets to begin with, which know nothing
FEWEST, MOST = 0.1, 0.6  # share of the sub-layers that they skip
CHOICE = CategoricalDistribution((False, True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A set and what was measured of it: its time per token over that of plain decoding, and its tokens per step."""

    sublayers: SkippedSublayers
    relative_time: float
    tokens_per_step: float


@final
class SkipStudy:
    """The trials of a search with ``settings`` in the file ``path``, for a target of ``num_layers``.

    The sub-layers of the first and the last layer are kept, as in Draft & Verify (2309.08168). The sampler is a
    tree-structured Parzen estimator, which begins from the trials that there are. Raises ValueError for a file that
    cannot be read or written, or that holds anything else.
    """

    def __init__(self, path: Path, *, num_layers: int, settings: Mapping[str, object], seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.names = [f"{part} {layer}" for layer in range(1, num_layers - 1) for part in ("attention", "mlp")]
        self.file, self.run = RawFile(path), fingerprint(settings)
        if not any(record["run"] == self.run for record in self.file.records):
            self.file.append({"kind": RUN, "run": self.run, "settings": dict(settings)})
        known = [record for record in self.file.records if record["kind"] == TRIAL and record["run"] == self.run]
        self.trials = [_read(record) for record in known]
        # Another seed keeps a search that goes on from drawing the same again.
        sampler = optuna.samplers.TPESampler(seed=seed + len(known), n_startup_trials=NUM_FIRST)
        self.study = optuna.create_study(sampler=sampler)
        for trial in self.trials:
            chosen = self._chosen(trial.sublayers)
            self.study.add_trial(
                optuna.create_trial(
                    params=chosen, distributions=dict.fromkeys(self.names, CHOICE), value=trial.relative_time
                )
            )
        for first in _first_sets(self.names, seed=seed)[len(known) :]:
            self.study.enqueue_trial({name: name in first for name in self.names})

    def ask(self) -> tuple[optuna.Trial, SkippedSublayers]:
        """The next set to try, and its trial."""
        trial = self.study.ask(dict.fromkeys(self.names, CHOICE))
        layers = {
            part: frozenset(int(name.split()[1]) for name in self.names if name.startswith(part) and trial.params[name])
            for part in ("attention", "mlp")
        }
        return trial, SkippedSublayers(attention=layers["attention"], mlp=layers["mlp"])

    def tell(self, asked: optuna.Trial, trial: Trial) -> None:
        """Write what was measured of the set that was asked for."""
        self.file.append(
            {
                "kind": TRIAL,
                "run": self.run,
                "attention": sorted(trial.sublayers.attention),
                "mlp": sorted(trial.sublayers.mlp),
                "relative_time": trial.relative_time,
                "tokens_per_step": trial.tokens_per_step,
            }
        )
        self.trials.append(trial)
        self.study.tell(asked, trial.relative_time)

    @property
    def best(self) -> Trial | None:
        """The fastest trial so far."""
        return min(self.trials, key=lambda one: one.relative_time, default=None)

    def _chosen(self, sublayers: SkippedSublayers) -> dict[str, bool]:
        layers = {"attention": sublayers.attention, "mlp": sublayers.mlp}
        parts = ((name, *name.split()) for name in self.names)
        return {name: int(layer) in layers[part] for name, part, layer in parts}


def best_of(trials: Sequence[Trial], count: int) -> list[Trial]:
    """The fastest trials of ``count`` different sets."""
    found: dict[SkippedSublayers, Trial] = {}
    for trial in sorted(trials, key=lambda one: one.relative_time):
        found.setdefault(trial.sublayers, trial)
    return list(found.values())[:count]


def _read(record: Record) -> Trial:
    sublayers = SkippedSublayers(attention=frozenset(record["attention"]), mlp=frozenset(record["mlp"]))
    return Trial(
        sublayers=sublayers,
        relative_time=float(record["relative_time"]),
        tokens_per_step=float(record["tokens_per_step"]),
    )


def _first_sets(names: Sequence[str], *, seed: int) -> list[set[str]]:
    """Sets of sizes from few to many, half of them spread evenly and half at random."""
    drawn, found = random.Random(seed), list[set[str]]()
    for at in range(NUM_FIRST // 2):
        share = FEWEST + (MOST - FEWEST) * at / (NUM_FIRST // 2 - 1)
        count = max(1, round(share * len(names)))
        found.append({names[(2 * i + 1) * len(names) // (2 * count)] for i in range(count)})
        found.append(set(drawn.sample(names, count)))
    return found
