"""Heads that draft token by token or a block at once, trained on the target's own outputs or on text.

Both heads read the same hidden states of the target and are trained in one run, on the same rows in the same order,
once on outputs that the target generated and once on the text that it was trained on; then decoded with in turns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch

from benchmarks.even_decoding import CONTROL, PLAIN, flat, tokens_per_step
from benchmarks.head_cells import cost, decode_heads, decoded, prompts_that_do_not_loop, sampling_of
from benchmarks.small_targets import WORK, Jobs, Work, common
from benchmarks.study import (
    ProcessorTime,
    Progress,
    Study,
    Suite,
    Timing,
    check_counts,
    check_temperatures,
    conditions_of,
    date,
    missing,
    option,
    run_cells,
)
from benchmarks.trainings import Training, train_all
from paceline.api import embedded_pair, load
from paceline.bench.columns import Column, Section, grouped
from paceline.bench.raw import RawFile, Record, hash_model
from paceline.bench.statistics import Estimate, pooled_ratio
from paceline.core.stats import Summary
from paceline.kernels.cpu.instruction_set import current_set

ROWS, LENGTH = 8, 255  # of a batch
DEPTH = 7  # drafted tokens that both are trained for, and compared by
DEPTHS = (1, 2, 4, DEPTH)
TAPS = (4, 10, 16)  # layers whose hidden states both read
HEADS: Mapping[str, tuple[str, dict[str, Any]]] = {  # kind and sizes
    "autoregressive": ("eagle3", {"taps": TAPS, "depth": DEPTH, "anchors": 64}),
    "block": ("block", {"taps": TAPS, "block_size": DEPTH + 1, "num_layers": 2, "mask_token_id": 0, "anchors": 64}),
}
OWN, CORPUS = "own outputs", "text"


@dataclass(frozen=True, slots=True)
class Cell:
    """Both heads that were trained on some text, decoded with beside each other at a temperature."""

    text: str
    hash: str  # of the heads' files
    temperature: float
    max_tokens: int

    @property
    def name(self) -> str:
        return f"trained on {self.text}, {sampling_of(self.temperature)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A head with one draft length."""

    where: str
    head: str
    text: str
    temperature: float
    depth: int
    acceptance: Sequence[Estimate]  # by depth, where the tokens before were accepted
    tokens: Estimate  # per step
    steps: Sequence[int]  # of every output
    draft: float | None  # time of a draft, in plain steps
    speedup: Estimate
    control: float
    void: bool


def acceptance_by_depth(summaries: Sequence[Summary]) -> list[Estimate]:
    """Of the drafts whose tokens before were all accepted, the share whose token at a depth is too.

    It ends before the first depth that drafts of half of the prompts do not reach. Intervals are over those that do.
    """
    found = []
    for depth in range(len(summaries[0].accepted)):
        reached = [(one.accepted[depth - 1] if depth else one.drafted[0], one.accepted[depth]) for one in summaries]
        pairs = [(before, own) for before, own in reached if before]
        if 2 * len(pairs) <= len(reached):
            break
        found.append(pooled_ratio([own for _, own in pairs], [before for before, _ in pairs]))
    return found


def lines_of(record: Record) -> list[Line]:
    """Of every head and draft length of a cell."""
    cell, seconds = record["cell"], {name: flat(parts) for name, parts in record["seconds"].items()}
    lines = []
    for head, depth in product(HEADS, DEPTHS):
        name = f"{head} {depth}"
        summaries = [Summary(**one) for one in record["summaries"][name]]
        per_token = cost(record, name)
        lines.append(
            Line(
                where=sampling_of(cell["temperature"]),
                head=head,
                text=cell["text"],
                temperature=cell["temperature"],
                depth=depth,
                acceptance=acceptance_by_depth(summaries),
                tokens=tokens_per_step(summaries),
                steps=[one.steps for one in summaries],
                draft=None if per_token is None else per_token * depth,
                speedup=pooled_ratio(seconds[PLAIN], seconds[name]),
                control=pooled_ratio(seconds[PLAIN], seconds[CONTROL]).value,
                void=record["void"],
            )
        )
    return lines


COLUMNS: list[Column[Line]] = [
    Column("head", "head", left=True),
    Column("trained on", "text", left=True),
    Column("k", "depth"),
    Column("tokens per step", "tokens", ".2f", estimate=True),
    Column("draft", "draft", ".2f", timed=True),
    Column("over plain", "speedup", ".2f", timed=True, estimate=True),
    Column("control", "control", ".3f"),
]
OVER_TEXT: list[Column[tuple[Line, Line]]] = [  # of lines that were trained on own outputs, and on text
    Column("head", lambda pair: pair[0].head, left=True),
    Column("sampling", lambda pair: pair[0].where, left=True),
    Column("own outputs over text", lambda pair: pooled_ratio(pair[1].steps, pair[0].steps), ".3f", estimate=True),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksAndText(Study):
    """Do heads draft better token by token or a block at once, and trained on the target's own outputs or on text?"""

    kind: ClassVar[str] = "blocks-and-text"
    title: ClassVar[str] = "Blocks and text"
    needs: ClassVar[tuple[str, ...]] = ("matplotlib",)

    work: Work = WORK
    own: Annotated[Path, option("Outputs of the target: python demo/recipes/zoo.py --only writes them.")] = Path(
        "build/zoo/own.npy"
    )
    steps: Annotated[int, option(f"Of both runs, {ROWS * LENGTH} tokens each.")] = 400
    suite: Suite = "code"
    temperatures: Annotated[tuple[float, ...], option("Greedy is 0.")] = (0.0, 0.4, 0.7, 1.0)
    max_tokens: Annotated[int, option("New tokens of every prompt.")] = 64
    num_prompts: Annotated[int, option("Prompts, one at a time.")] = 24
    repeats: Annotated[int, option("Timed decodings.")] = 2
    processor_time: ProcessorTime = False
    jobs: Jobs = 2

    def check(self) -> None:
        """Raise ValueError for options that mean nothing."""
        check_counts(steps=self.steps, max_tokens=self.max_tokens, jobs=self.jobs)
        check_counts(least=2, repeats=self.repeats)
        check_counts(least=4, num_prompts=self.num_prompts)
        check_temperatures(self.temperatures)
        if not self.report and not self.own.exists():
            raise ValueError(f"--own {self.own} is not there; python demo/recipes/zoo.py --only writes it")

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Train what is not trained, and put what is measured into ``raw``."""
        trainings = {text: self._training(text) for text in (OWN, CORPUS)}
        train_all(list(trainings.values()), self.work, say, jobs=self.jobs)
        path = embedded_pair()[0]
        target = load(path, dtype=torch.bfloat16, device="cpu")
        choices = {name: getattr(self, name) for name in ("steps", "suite", "num_prompts", "repeats", "processor_time")}
        conditions = conditions_of({"target": path}, target.dtype, isa=current_set(), **choices)
        run = raw.begin(conditions, date)
        heads = {
            text: {head: training.folder(self.work) / head for head in HEADS} for text, training in trainings.items()
        }
        hashes = {text: "".join(hash_model(path)[:6] for path in own.values()) for text, own in heads.items()}
        cells = [
            Cell(text, hashes[text], temperature, self.max_tokens)
            for temperature, text in product(self.temperatures, heads)
        ]
        timing = Timing(repeats=self.repeats, seconds=0.0, processor_time=self.processor_time)
        for cell, identity in missing(raw, cells, run_cells(self.kind, run), say):
            num = self.num_prompts
            prompts, params, looping = prompts_that_do_not_loop(
                target, self.suite, cell, num, 4 * num, longest_draft=DEPTH
            )
            made = {head: str(path) for head, path in heads[cell.text].items()}
            depths = dict.fromkeys(HEADS, DEPTHS)
            sides = decode_heads(cell, target, made, depths, prompts, params, batch_size=1, timing=timing)
            raw.append({**identity, "num_looping": looping, **decoded(sides)})

    def _training(self, text: str) -> Training:
        """Both heads on one text."""
        data = {
            OWN: {"sources": [{"kind": "tokens", "paths": [str(self.own)]}], "validation": {"by": "document"}},
            CORPUS: {"sources": [{"kind": "standard_library"}]},
        }
        shared = common(self.work, steps=self.steps)
        config = {
            **shared,
            "precision": "bf16",
            "data": {**shared["data"], **data[text]},
            "target": {"path": str(embedded_pair()[0]), "dtype": "bfloat16"},
            "heads": [{"name": name, "kind": kind, "config": dict(own)} for name, (kind, own) in HEADS.items()],
            "batch": {"rows": ROWS, "length": LENGTH},
            "loss": {"terms": {"kl": 0.5, "argmax": 0.5}, "rows": ROWS},
            "optimiser": {"learning_rate": 4e-3},
            "validation": {"every": self.steps, "prompts": 64, "prompt_tokens": 48, "tokens": 24, "k": DEPTH},
            "seed": 0,
        }
        return Training(name=f"blocks-{'own' if text == OWN else 'text'}-{self.steps}", config=config)

    def _lines(self, run: Record, records: Sequence[Record]) -> list[Line]:
        return [line for record in self.last(run, records) for line in lines_of(record)]

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Any]]:
        """A table for every temperature, what is accepted by depth, and what own outputs are worth."""
        lines, conditions = self._lines(run, records), run["conditions"]
        by_depth: list[Column[Line]] = [
            *COLUMNS[:2],
            *(Column(str(depth + 1), lambda line, at=depth: _at(line.acceptance, at), ".2f") for depth in range(DEPTH)),
        ]
        longest = [replace(line, void=False) for line in lines if line.depth == DEPTH]  # counts are no times
        own, text = ([line for line in longest if line.text == name] for name in (OWN, CORPUS))
        pairs = [
            (one, other) for one, other in product(own, text) if (one.head, one.where) == (other.head, other.where)
        ]
        return [
            *grouped(lambda where: f"{where}, {conditions['isa']}", COLUMNS, lines, lambda line: line.where),
            *grouped(lambda where: f"{where}: accepted, by depth", by_depth, longest, lambda line: line.where),
            Section(
                title=f"tokens per step, {DEPTH} drafted: trained on own outputs over trained on text",
                columns=OVER_TEXT,
                lines=pairs,
            ),
        ]

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """What the figures are."""
        return [
            f"trained for {run['conditions']['steps']} steps of {ROWS * LENGTH} tokens, both heads in one run",
            "draft: time of drafting k tokens, in plain steps",
            "accepted, by depth: of the drafts whose tokens before were accepted, the share with this one too",
            "own outputs over text: both write the same, so it is the steps of the one over the other's, by output",
            "[ ]: 95 % interval over prompts, of times over prompts and repeats; void: plain decoding differs from "
            "itself by more than 3 %",
        ]

    def draw(self, run: Record, records: Sequence[Record], *, title: str) -> str:
        """Acceptance by depth at both ends of temperature, tokens per step by temperature, and the time of a draft."""
        from paceline.bench import drawing  # needs the optional matplotlib

        lines = self._lines(run, records)
        arms = list(dict.fromkeys((line.head, line.text) for line in lines))
        temperatures = sorted({line.temperature for line in lines})

        def panels(axes: Sequence[Any]) -> None:
            for at, arm in enumerate(arms):
                label, style = " head, ".join(arm), drawing.series(at)
                own = [line for line in lines if (line.head, line.text) == arm]
                longest = [line for line in own if line.depth == DEPTH]
                for axis, temperature in zip(axes, (temperatures[0], temperatures[-1]), strict=False):
                    (line,) = (line for line in longest if line.temperature == temperature)
                    drawing.error_bars(axis, range(1, len(line.acceptance) + 1), line.acceptance, label, **style)
                tokens = [line.tokens for line in longest]
                drawing.error_bars(axes[2], [line.temperature for line in longest], tokens, label, **style)
                timed = [line for line in own if line.temperature == temperatures[0] and not line.void]
                costs = [line.draft if line.draft is not None else float("nan") for line in timed]
                axes[3].plot([line.depth for line in timed], costs, label=label, **style)
            for axis, temperature in zip(axes, (temperatures[0], temperatures[-1]), strict=False):
                axis.set_xticks(range(1, DEPTH + 1))
                drawing.finish(axis, x="depth", y="accepted after the token before", title=sampling_of(temperature))
            drawing.finish(axes[2], x="temperature", y=f"tokens per step, {DEPTH} drafted")
            drawing.finish(axes[3], x="drafted tokens", y="time of a draft, in plain steps")

        return drawing.draw_panels(panels, size=(9.0, 8.4), title=title, rows=2, columns=2)


def _at(found: Sequence[Estimate], depth: int) -> float | None:
    return found[depth].value if depth < len(found) else None
