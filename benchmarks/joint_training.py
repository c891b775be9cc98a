"""What does it cost a target to be trained together with a draft head, and does the head become better by it?

Targets of one size are trained alone, and with a prophet, a multi-token-prediction module or an early exit, whose
losses reach the target's weights. Runs of one seed begin with the same weights and read the same text in the same
order. Then the same heads are trained on the targets that were trained alone, which are frozen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from rich.table import Table

from benchmarks.joint_report import (
    AFTERWARDS,
    ALONE,
    DISTILLED,
    HEAD_COLUMNS,
    JOINTLY,
    LOSS_COLUMNS,
    SAMPLED_AT,
    draw,
    head_lines,
    loss_lines,
)
from benchmarks.small_targets import SIZES, WORK, Jobs, Work, check_sizes, common, untrained
from benchmarks.study import (
    Progress,
    Study,
    check_counts,
    conditions_of,
    counts,
    date,
    missing,
    native,
    option,
    run_cells,
)
from benchmarks.trainings import Training, history, train_all
from paceline.api import Loaded, SamplingParams, generate, load
from paceline.bench.columns import Section
from paceline.bench.raw import RawFile, Record
from paceline.kernels.cpu.instruction_set import current_set
from paceline.models.loading import configure, read_config
from paceline.models.native.decoder import DecoderLM
from paceline.text.loops import is_looping
from paceline.text.tokenizer import load_tokenizer
from paceline.train.data import PreparedData, make_batches
from paceline.train.data.config import DataConfig
from paceline.train.data.mixture import RowBatches
from paceline.train.history import HELD_OUT_LOSS
from paceline.train.tasks.models import next_token_output
from paceline.train.tasks.terms import num_learned

TERMS = {JOINTLY: {"text": 1.0}, AFTERWARDS: {"text": 1.0}, DISTILLED: {"kl": 0.5, "argmax": 0.5}}
ROWS, LENGTH, PROMPT = 16, 256, 48  # of a batch; tokens of a prompt
RATE, HEAD_RATE = 3e-3, 4e-3
CURVE = 12  # validations of a run


def heads_for(layers: int, depth: int) -> dict[str, dict[str, Any]]:
    """The heads, for a target of so many layers."""
    return {
        "prophet": {"kind": "prophet", "config": {"num_states": 2, "depth": depth, "anchors": 64}},
        "mtp": {"kind": "mtp", "config": {"depth": depth, "anchors": 64}},
        "early_exit": {"kind": "early_exit", "config": {"exit_layer": layers // 4}},
    }


@dataclass(frozen=True, slots=True)
class Cell:
    """A target with a head, or without one: how the head was trained, and the seed of the runs."""

    head: str
    how: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.head}, {self.how}, seed {self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JointTraining(Study):
    """What does it cost a target to be trained together with a draft head, and does the head become better by it?"""

    kind: ClassVar[str] = "joint-training"
    title: ClassVar[str] = "Trained together"
    needs: ClassVar[tuple[str, ...]] = ("matplotlib", "scipy")

    work: Work = WORK
    size: Annotated[str, option(f"Of the targets: {', '.join(SIZES)}.")] = "1M"
    steps: Annotated[int, option(f"Of every run, {ROWS * LENGTH} tokens each.")] = 400
    seeds: Annotated[tuple[int, ...], counts("Of weights and order.")] = (0, 1, 2)
    weight: Annotated[float, option("Of a head's loss beside the target's.")] = 0.3
    depth: Annotated[int, option("Tokens that a head learns to predict, and drafts.")] = 4
    num_prompts: Annotated[int, option("Beginnings of held-out rows that the heads are measured on.")] = 64
    max_tokens: Annotated[int, option("New tokens of each.")] = 64
    jobs: Jobs = 2

    def check(self) -> None:
        """Raise ValueError for options that mean nothing."""
        check_counts(steps=self.steps, depth=self.depth, num_prompts=self.num_prompts, max_tokens=self.max_tokens)
        check_counts(jobs=self.jobs)
        check_counts(least=0, seeds=self.seeds)
        check_sizes([self.size])
        if not self.weight > 0:
            raise ValueError(f"weight={self.weight}: give more than 0")

    @property
    def _heads(self) -> dict[str, dict[str, Any]]:
        return heads_for(SIZES[self.size][0], self.depth)

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Train what is not trained, and put what is found into ``raw``: what is trained jointly first."""
        joint = {
            Cell(head, JOINTLY, seed): self._with(head, seed) for head in (ALONE, *self._heads) for seed in self.seeds
        }
        train_all(list(joint.values()), self.work, say, jobs=self.jobs)
        choices = {
            name: getattr(self, name) for name in ("size", "steps", "weight", "depth", "num_prompts", "max_tokens")
        }
        run = raw.begin(conditions_of({}, "float32", isa=current_set(), **choices), date)
        self._measure(joint, run, raw, say)
        later = {(how, seed): self._later(how, seed) for how, seed in product((AFTERWARDS, DISTILLED), self.seeds)}
        train_all(list(later.values()), self.work, say, jobs=self.jobs)
        cells = {Cell(head, how, seed): training for (how, seed), training in later.items() for head in self._heads}
        self._measure(cells, run, raw, say)

    def _measure(self, cells: Mapping[Cell, Training], run: str, raw: RawFile, say: Progress) -> None:
        """Put into ``raw`` what is found of ``cells``, whose trainings are finished."""
        data = self._data()
        assert data.held_out is not None
        prompts = data.prompts(self.num_prompts, PROMPT, seed=1).tolist()  # validations take those of seed 0
        for cell, identity in missing(raw, list(cells), run_cells(self.kind, run), say):
            training = cells[cell]
            with_target = training if cell.how == JOINTLY else self._with(ALONE, cell.seed)
            folder = with_target.folder(self.work) / "target"
            target = load(folder, dtype=torch.float32, device="cpu")
            found: dict[str, Any] = {"void": False}
            if cell.how == JOINTLY:
                past = history(training, self.work)
                assert past is not None
                found |= {"losses": losses(native(target, folder), data.held_out), "curve": past.curve(HELD_OUT_LOSS)}
            if cell.head != ALONE:
                head = training.folder(self.work) / cell.head
                found["summaries"] = {str(t): self._drafted(target, head, prompts, t) for t in SAMPLED_AT}
            raw.append({**identity, **found})

    def _with(self, head: str, seed: int) -> Training:
        """A target that is trained with ``head``."""
        config = {
            **common(self.work, steps=self.steps),
            "target": {"path": str(untrained(self.size, seed, self.work)), "trained": True},
            "batch": {"rows": ROWS, "length": LENGTH},
            "optimiser": {"learning_rate": RATE},
            "validation": {"every": max(1, self.steps // CURVE), "prompts": 2, "tokens": 8, "k": self.depth},
            "seed": seed,
        }
        if head != ALONE:
            config["heads"] = [{"name": head, "weight": self.weight, **self._heads[head]}]
            config["loss"] = {"terms": TERMS[JOINTLY], "rows": ROWS}
        return Training(name=f"joint-{self.size}-{head}-{seed}", config=config)

    def _later(self, how: str, seed: int) -> Training:
        """All heads on the frozen target that was trained alone."""
        target = self._with(ALONE, seed).folder(self.work) / "target"
        config = {
            **common(self.work, steps=self.steps),
            "target": {"path": str(target)},
            "heads": [{"name": name, **head} for name, head in self._heads.items()],
            "batch": {"rows": ROWS, "length": LENGTH},
            "loss": {"terms": TERMS[how], "rows": ROWS},
            "optimiser": {"learning_rate": HEAD_RATE},
            "validation": {"every": self.steps, "prompts": 64, "tokens": 24, "k": self.depth},
            "seed": seed,
        }
        name = "text" if how == AFTERWARDS else "distilled"
        return Training(name=f"later-{self.size}-{name}-{seed}", config=config)

    def _data(self) -> PreparedData:
        """The text of all runs."""
        known = untrained(self.size, self.seeds[0], self.work)
        return make_batches(
            DataConfig.model_validate(common(self.work, steps=self.steps)["data"]),
            tokenizer=load_tokenizer(known),
            vocab_size=configure(dict(read_config(known)), known).vocab_size,
            end_of_text=0,
            rows=ROWS,
            length=LENGTH,
            seed=0,
        )

    def _drafted(self, target: Loaded, head: Path, prompts: Sequence[Sequence[int]], temperature: float) -> Record:
        """Summaries of the outputs that do not loop."""
        params = [
            SamplingParams(max_tokens=self.max_tokens, temperature=temperature, seed=seed, ignore_eos=True)
            for seed in range(self.num_prompts)
        ]
        results = generate(target, prompts, params, drafter=str(head), num_draft_tokens=self.depth, batch_size=8)
        sound = [asdict(one.stats.summary) for one in results if not is_looping(one.token_ids)]
        return {"sound": sound, "num_looping": len(results) - len(sound)}

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Any] | Table]:
        """The targets' losses, and how the heads draft."""
        found = self.last(run, records)
        conditions = run["conditions"]
        where, steps = conditions["isa"], conditions["steps"]
        what = f"targets of {conditions['size']}, {steps} steps of {ROWS * LENGTH} tokens, {where}"
        return [
            Section(title=f"{what}: nats per token of held-out text", columns=LOSS_COLUMNS, lines=loss_lines(found)),
            Section(
                title=f"heads, drafts of {conditions['depth']} tokens", columns=HEAD_COLUMNS, lines=head_lines(found)
            ),
        ]

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """What the figures are."""
        return [
            f"jointly: a head's loss has a weight of {run['conditions']['weight']:g} beside the target's, and its "
            "gradient reaches the target; afterwards: as many steps on the frozen target that was trained alone, on "
            "the text too, or distilled from the target's distributions",
            "from alone: mean over seeds of the difference from the target of the same seed that was trained alone, "
            "with the 95 % t interval over seeds",
            "[ ] of tokens per step: 95 % interval over outputs of all seeds; those that loop are left out",
        ]

    def draw(self, run: Record, records: Sequence[Record], *, title: str) -> str:
        """The difference in loss over the steps, and tokens per step."""
        return draw(self.last(run, records), title=title)


@torch.no_grad()
def losses(target: DecoderLM, held_out: RowBatches) -> list[float]:
    """Nats per token of every row of the held-out text."""
    found = list[float]()
    for at in range(held_out.num_rows):
        batch = held_out.gather([at])
        found.append(round(float(next_token_output(target, batch).loss) / float(num_learned(batch)), 5))
    return found
