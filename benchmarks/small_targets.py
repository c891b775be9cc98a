"""Targets of about 1, 3 and 7 million parameters, trained alike on Python's standard library: what the studies of draft
heads compare sizes on.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch

from benchmarks.study import Progress, Study, check_counts, conditions_of, date, missing, option, run_cells
from benchmarks.trainings import Training, history, train_all
from demo.recipes.shapes import llama
from paceline.api import embedded_pair
from paceline.bench.columns import Column, Section
from paceline.bench.raw import RawFile, Record
from paceline.kernels.cpu.instruction_set import current_set
from paceline.models.loading import load, save
from paceline.train.history import HELD_OUT_LOSS
from paceline.train.init_weights import random_model

WORK = Path("build/experiments")
SIZES = {  # layers, width, inner width, heads, of which have keys and values
    "1M": (8, 96, 192, 3, 1),
    "3M": (12, 144, 320, 3, 1),
    "7M": (16, 192, 512, 4, 2),
}
ROWS, LENGTH = 8, 512  # of a batch
SEED = 20_26
Work = Annotated[Path, option("Folder of the runs that train what is measured; they go on where they stopped.")]
Jobs = Annotated[int, option("Training runs at a time, one thread each.")]


def check_sizes(sizes: Sequence[str]) -> None:
    """Raise ValueError for one that is not of ``SIZES``, or none."""
    unknown = [size for size in sizes if size not in SIZES]
    if unknown or not sizes:
        raise ValueError(f"sizes={unknown or 'none'}: give some of {', '.join(SIZES)}")


def largest_first(sizes: Sequence[str]) -> list[str]:
    """In the order in which runs begin, so that the longest does not come last."""
    return sorted(sizes, key=list(SIZES).index, reverse=True)


def shape(size: str, vocab_size: int) -> dict[str, object]:
    """The config.json of a target."""
    layers, width, inner, heads, kv_heads = SIZES[size]
    return llama(
        hidden=width,
        inner=inner,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        vocab_size=vocab_size,
        dtype="float32",
    )


def untrained(size: str, seed: int, work: Path) -> Path:
    """A directory with random weights and the tokenizer of the embedded pair, written at its first use."""
    folder, known = work / f"untrained-{size}-{seed}", embedded_pair()[0]
    if not (folder / "tokenizer.json").exists():
        raw = shape(size, load(known).vocab_size)
        save(random_model(raw, seed), raw, folder, dtype=torch.float32)
        for name in ("tokenizer_config.json", "tokenizer.json"):  # the latter says that all is there
            shutil.copyfile(known / name, folder / name)
    return folder


def common(work: Path, *, steps: int) -> dict[str, Any]:
    """What all runs share: the text, and a loop without randomness but the seed's."""
    return {
        "data": {"sources": [{"kind": "standard_library"}], "cache": str(work / "cache")},
        "schedule": {"steps": steps, "warmup": min(100, steps // 4)},
        "precision": "fp32",
        "checkpoints": {"every": 100, "keep": 1},
    }


def training_of(size: str, work: Path, *, steps: int) -> Training:
    """The run that trains a target."""
    config = {
        **common(work, steps=steps),
        "target": {"path": str(untrained(size, SEED, work)), "trained": True},
        "batch": {"rows": ROWS, "length": LENGTH},
        "optimiser": {"learning_rate": 3e-3},
        "validation": {"every": max(1, steps // 6)},
        "seed": SEED,
    }
    return Training(name=f"target-{size}", config=config)


def trained_target(size: str, work: Path) -> Path:
    """The directory of a trained target. Raises ValueError where it is not trained."""
    folder = work / f"target-{size}" / "target"
    if not (folder / "config.json").exists():
        raise ValueError(f"{folder} is not there; train it first: python -m benchmarks small-targets --work {work}")
    return folder


@dataclass(frozen=True, slots=True)
class Size:
    """A target."""

    size: str

    @property
    def name(self) -> str:
        return f"the target of {self.size}"


COLUMNS: list[Column[Record]] = [
    Column("target", lambda record: record["cell"]["size"], left=True),
    Column("parameters", lambda record: record["parameters"], ","),
    Column("layers", lambda record: SIZES[record["cell"]["size"]][0]),
    Column("width", lambda record: SIZES[record["cell"]["size"]][1]),
    Column("tokens", lambda record: record["tokens"], ","),
    Column("held-out loss", lambda record: record["loss"], ".3f"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallTargets(Study):
    """Train the targets of the studies of heads: three sizes, the same text, order and recipe."""

    kind: ClassVar[str] = "small-target"
    title: ClassVar[str] = "Small targets"

    work: Work = WORK
    sizes: Annotated[tuple[str, ...], option(f"Of {', '.join(SIZES)}.")] = tuple(SIZES)
    steps: Annotated[int, option(f"Of {ROWS * LENGTH} tokens.")] = 400
    jobs: Jobs = 2

    def check(self) -> None:
        """Raise ValueError for options that mean nothing."""
        check_counts(steps=self.steps, jobs=self.jobs)
        check_sizes(self.sizes)

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Train what is not trained, and put its loss into ``raw``."""
        trainings = {size: training_of(size, self.work, steps=self.steps) for size in largest_first(self.sizes)}
        train_all(list(trainings.values()), self.work, say, jobs=self.jobs)
        run = raw.begin(conditions_of({}, "float32", isa=current_set(), steps=self.steps), date)
        for cell, identity in missing(raw, [Size(size) for size in self.sizes], run_cells(self.kind, run), say):
            found = history(trainings[cell.size], self.work)
            assert found is not None
            lm = load(trained_target(cell.size, self.work))
            raw.append(
                {
                    **identity,
                    "void": False,
                    "parameters": sum(part.numel() for part in lm.parameters()),
                    "tokens": self.steps * ROWS * LENGTH,
                    "curve": found.curve(HELD_OUT_LOSS),
                    "loss": min(found.curve(HELD_OUT_LOSS)[1]),
                }
            )

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Record]]:
        """The table of one run."""
        return [
            Section(
                title=f"trained alike, nats per token of held-out text, {run['conditions']['isa']}",
                columns=COLUMNS,
                lines=self.last(run, records),
            )
        ]
