"""Prophet or early exit: which drafts better, by exit layer, extra blocks, recycled states and target size?

All heads of a target are trained in one run, so they read the same rows in the same order, and are then decoded with in
turns, beside plain decoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, ClassVar

import torch

from benchmarks.exit_report import COLUMNS, DEPTH, HEADS, Line, draw, lines_of
from benchmarks.head_cells import best_depth, decode_heads, decoded, place, prompts_that_do_not_loop
from benchmarks.small_targets import SIZES, WORK, Jobs, Work, check_sizes, common, largest_first, trained_target
from benchmarks.study import (
    ProcessorTime,
    Progress,
    Study,
    Suite,
    Timing,
    check_counts,
    check_temperatures,
    conditions_of,
    counts,
    date,
    missing,
    option,
    run_cells,
)
from benchmarks.trainings import Training, train_all
from paceline.api import Loaded, load
from paceline.api.drafter_like import DrafterLike
from paceline.bench.columns import Section, grouped
from paceline.bench.raw import RawFile, Record, hash_model
from paceline.kernels.cpu.instruction_set import current_set

ROWS, LENGTH = 4, 255  # of a batch
DEPTHS = (1, 2, DEPTH, 6)  # draft lengths of which the fastest is taken
SEARCHED = 8  # prompts that choose it


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """All heads of a target, decoded with beside each other."""

    size: str
    hash: str  # of the heads' files
    temperature: float
    batch_size: int
    max_tokens: int

    @property
    def name(self) -> str:
        return f"the target of {self.size}, {place(self.temperature, self.batch_size)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitsAndProphets(Study):
    """Prophet or early exit: which drafts better, by exit layer, extra blocks, recycled states and target size?"""

    kind: ClassVar[str] = "exits-and-prophets"
    title: ClassVar[str] = "Prophets and early exits"
    needs: ClassVar[tuple[str, ...]] = ("matplotlib",)

    work: Work = WORK
    sizes: Annotated[tuple[str, ...], option(f"Of the targets: some of {', '.join(SIZES)}.")] = tuple(SIZES)
    steps: Annotated[int, option(f"Of training, {ROWS * LENGTH} tokens each.")] = 200
    suite: Suite = "code"
    temperatures: Annotated[tuple[float, ...], option("Greedy is 0.")] = (0.0, 1.0)
    batch: Annotated[tuple[int, ...], counts("Rows of a batch.")] = (1, 8)
    max_tokens: Annotated[int, option("New tokens of every row.")] = 64
    num_prompts: Annotated[int, option(f"Prompts that are measured; {SEARCHED} others choose the draft length.")] = 16
    repeats: Annotated[int, option("Timed decodings.")] = 2
    processor_time: ProcessorTime = False
    jobs: Jobs = 2

    def check(self) -> None:
        """Raise ValueError for options that mean nothing."""
        check_counts(steps=self.steps, batch=self.batch, max_tokens=self.max_tokens, num_prompts=self.num_prompts)
        check_counts(jobs=self.jobs)
        check_counts(least=2, repeats=self.repeats)
        check_sizes(self.sizes)
        check_temperatures(self.temperatures)
        for rows in self.batch:
            if self.num_prompts % rows or SEARCHED % rows:
                raise ValueError(
                    f"batch={rows}: {self.num_prompts} and {SEARCHED} prompts make no whole batches of it; give a "
                    "divisor of both"
                )

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Train what is not trained, and put what is measured into ``raw``."""
        trainings = {size: self._training(size) for size in largest_first(self.sizes)}
        train_all(list(trainings.values()), self.work, say, jobs=self.jobs)
        choices = {
            "isa": current_set(),
            "steps": self.steps,
            "suite": self.suite,
            "num_prompts": self.num_prompts,
            "repeats": self.repeats,
            "processor_time": self.processor_time,
        }
        run = raw.begin(conditions_of({}, "float32", **choices), date)
        folders = {size: training.folder(self.work) for size, training in trainings.items()}
        heads = {size: [folders[size] / head.name for head in HEADS] for size in self.sizes}
        hashes = {size: "".join(hash_model(path)[:6] for path in paths) for size, paths in heads.items()}
        cells = [
            Cell(size=size, hash=hashes[size], temperature=t, batch_size=rows, max_tokens=self.max_tokens)
            for size, t, rows in product(self.sizes, self.temperatures, self.batch)
        ]
        timing = Timing(repeats=self.repeats, seconds=0.0, processor_time=self.processor_time)
        for cell, identity in missing(raw, cells, run_cells(self.kind, run), say):
            target = load(trained_target(cell.size, self.work), dtype=torch.float32, device="cpu")
            raw.append({**identity, **self._decode(cell, target, heads[cell.size], timing)})

    def _training(self, size: str) -> Training:
        """All heads of a target."""
        config = {
            **common(self.work, steps=self.steps),
            "target": {"path": str(trained_target(size, self.work))},
            "heads": [{"name": head.name, "kind": head.kind, "config": head.config(SIZES[size][0])} for head in HEADS],
            "batch": {"rows": ROWS, "length": LENGTH},
            "loss": {"terms": {"kl": 0.5, "argmax": 0.5}, "rows": ROWS},
            "optimiser": {"learning_rate": 4e-3},
            "validation": {"every": self.steps, "prompts": 64, "tokens": 24, "k": DEPTH},
            "seed": 0,
        }
        return Training(name=f"exits-{size}-{self.steps}", config=config)

    def _decode(self, cell: Cell, target: Loaded, heads: Sequence[Path], timing: Timing) -> Record:
        """What the record of ``cell`` says."""
        num = SEARCHED + self.num_prompts
        prompts, params, looping = prompts_that_do_not_loop(
            target, self.suite, cell, num, 5 * num, longest_draft=max(DEPTHS)
        )
        made: dict[str, DrafterLike] = {path.name: str(path) for path in heads}
        every = {name: DEPTHS for name in made}
        decode = partial(decode_heads, cell, target, made, batch_size=cell.batch_size)
        searched = decode(every, prompts[:SEARCHED], params[:SEARCHED], timing=replace(timing, repeats=1))
        best = {name: best_depth(searched, {f"{name} {depth}": depth for depth in DEPTHS}) for name in made}
        compared = {name: (DEPTH, depth) for name, depth in best.items()}
        sides = decode(compared, prompts[SEARCHED:], params[SEARCHED:], timing=timing)
        return {"best": best, "num_looping": looping, **decoded(sides)}

    def _lines(self, run: Record, records: Sequence[Record]) -> list[Line]:
        return [line for record in self.last(run, records) for line in lines_of(record)]

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Line]]:
        """A table for every target, temperature and batch size."""
        return grouped(
            lambda where: f"{where}, {run['conditions']['isa']}",
            COLUMNS,
            self._lines(run, records),
            lambda line: line.where,
        )

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """What the figures are."""
        conditions = run["conditions"]
        return [
            f"all heads of a target trained in one run, {conditions['steps']} steps of {ROWS * LENGTH} tokens of text",
            f"tokens per step and cost: with {DEPTH} drafted tokens; cost: time of drafting a token, in plain steps",
            f"best k: the fastest of {', '.join(map(str, DEPTHS))} on {SEARCHED} other prompts; over plain: with it",
            "[ ]: 95 % interval over prompts, of times over parts and repeats; void: plain decoding differs from "
            "itself by more than 3 %",
        ]

    def draw(self, run: Record, records: Sequence[Record], *, title: str) -> str:
        """Tokens per step and speed by size."""
        return draw(self._lines(run, records), title=title)
