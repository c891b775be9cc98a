"""Does a draft tree pay for a head? Chains and the best trees of some sizes, beside plain decoding.

The trees are those with the most accepted tokens by what a head's first, second, third choice was accepted on other
prompts, as in Medusa (2401.10774).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, ClassVar

import torch

from benchmarks.even_decoding import CONTROL, PLAIN, flat, tokens_per_step
from benchmarks.head_cells import decode_beside_plain, decoded, place, prompts_that_do_not_loop
from benchmarks.study import (
    ProcessorTime,
    Progress,
    Study,
    Suite,
    Target,
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
from paceline.api import Engine, Loaded, SamplingParams, embedded_pair, load
from paceline.api.build import build_shaped
from paceline.api.draft_heads import is_head
from paceline.bench.columns import Column, Section, grouped
from paceline.bench.raw import RawFile, Record, hash_model
from paceline.bench.statistics import Estimate, pooled_ratio
from paceline.bench.tree_search import advise_tree
from paceline.core.stats import Summary
from paceline.drafters.tree.optimal import best_topology
from paceline.drafters.tree.shapes import Topology
from paceline.kernels.cpu.instruction_set import current_set

SEARCHED = 16  # prompts that choose the trees
WIDTH = 8  # most children of a node


@dataclass(frozen=True, slots=True)
class Cell:
    """A head with all its chains and trees."""

    head: str
    hash: str  # of its files
    temperature: float
    max_tokens: int

    @property
    def name(self) -> str:
        return f"{self.head}, {place(self.temperature, 1)}"


@dataclass(frozen=True, slots=True)
class Line:
    """A head with one shape of its drafts."""

    where: str
    shape: str
    nodes: int
    depth: int
    tokens: Estimate  # per step
    speedup: Estimate
    control: float
    void: bool


COLUMNS: list[Column[Line]] = [
    Column("draft", "shape", left=True),
    Column("tokens drafted", "nodes"),
    Column("depth", "depth"),
    Column("tokens per step", "tokens", ".2f", estimate=True),
    Column("over plain", "speedup", ".2f", timed=True, estimate=True),
    Column("control", "control", ".3f"),
]


def lines_of(record: Record) -> list[Line]:
    """Of every shape."""
    seconds = {name: flat(parts) for name, parts in record["seconds"].items()}
    lines = []
    for name, nodes in record["shapes"].items():
        summaries = [Summary(**one) for one in record["summaries"][name]]
        lines.append(
            Line(
                where=f"{record['cell']['head']}, {place(record['cell']['temperature'], 1)}",
                shape=name,
                nodes=len(nodes),
                depth=max(map(len, nodes)),
                tokens=tokens_per_step(summaries),
                speedup=pooled_ratio(seconds[PLAIN], seconds[name]),
                control=pooled_ratio(seconds[PLAIN], seconds[CONTROL]).value,
                void=record["void"],
            )
        )
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTrees(Study):
    """Does a draft tree pay for a head? Chains and the best trees of some sizes, beside plain decoding."""

    kind: ClassVar[str] = "head-trees"
    title: ClassVar[str] = "Draft trees of heads"

    heads: Annotated[tuple[Path, ...], option("Directories of heads.")] = (Path("build/zoo/medusa/medusa"),)
    target: Target = None
    chains: Annotated[tuple[int, ...], counts("Lengths of chains.")] = (1, 2, 3, 4)
    nodes: Annotated[tuple[int, ...], counts("Drafted tokens of the trees.")] = (4, 8, 16, 32)
    depth: Annotated[int, option("Levels of a tree at most.")] = 5
    suite: Suite = "code"
    temperatures: Annotated[tuple[float, ...], option("Greedy is 0.")] = (0.0, 1.0)
    max_tokens: Annotated[int, option("New tokens of every prompt.")] = 64
    num_prompts: Annotated[int, option(f"Prompts, one at a time; {SEARCHED} others choose the trees.")] = 16
    repeats: Annotated[int, option("Timed decodings.")] = 2
    processor_time: ProcessorTime = False

    def check(self) -> None:
        """Raise ValueError for options that mean nothing, and for what is no head."""
        check_counts(chains=self.chains, nodes=self.nodes, depth=self.depth, max_tokens=self.max_tokens)
        check_counts(num_prompts=self.num_prompts)
        check_counts(least=2, repeats=self.repeats)
        check_temperatures(self.temperatures)
        others = [str(path) for path in self.heads if not is_head(path)]
        if others and not self.report:
            raise ValueError(f"--heads {', '.join(others)}: no draft head; make zoo-train trains some")

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Put into ``raw`` what it lacks."""
        path = self.target or embedded_pair()[0]
        target = load(path, dtype=torch.bfloat16, device="cpu")
        names = ("suite", "chains", "nodes", "depth", "num_prompts", "repeats", "processor_time")
        choices = {name: getattr(self, name) for name in names}
        run = raw.begin(conditions_of({"target": path}, target.dtype, isa=current_set(), **choices), date)
        heads = {path.name: path for path in self.heads}
        cells = [
            Cell(name, hash_model(path), temperature, self.max_tokens)
            for temperature, (name, path) in product(self.temperatures, heads.items())
        ]
        timing = Timing(repeats=self.repeats, seconds=0.0, processor_time=self.processor_time)
        for cell, identity in missing(raw, cells, run_cells(self.kind, run), say):
            num, head = SEARCHED + self.num_prompts, str(heads[cell.head])
            prompts, params, looping = prompts_that_do_not_loop(
                target, self.suite, cell, num, 3 * num, longest_draft=max(self.nodes)
            )
            shapes = self._shapes(target, head, prompts[:SEARCHED], params[0])
            drafted = {name: partial(_engine, target, head, shape) for name, shape in shapes.items()}
            sides = decode_beside_plain(
                cell, target, drafted, prompts[SEARCHED:], params[SEARCHED:], batch_size=1, timing=timing
            )
            found = {name: list(shape.nodes) for name, shape in shapes.items()}
            raw.append({**identity, "num_looping": looping, "shapes": found, **decoded(sides)})

    def _shapes(
        self, target: Loaded, head: str, prompts: Sequence[Sequence[int]], params: SamplingParams
    ) -> Mapping[str, Topology]:
        """By what they are called."""
        most = max(self.nodes)
        rates = advise_tree(target, head, prompts, params, num_drafted=most, depth=self.depth, width=WIDTH).rates
        return {
            **{f"chain of {length}": Topology.chain(length) for length in self.chains},
            **{f"tree of {count}": best_topology(rates, count, self.depth) for count in self.nodes},
        }

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Line]]:
        """A table for every head and temperature."""
        lines = [line for record in self.last(run, records) for line in lines_of(record)]
        where = run["conditions"]["isa"]
        return grouped(lambda name: f"{name}, {where}", COLUMNS, lines, lambda line: line.where)

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """What the figures are."""
        return [
            f"trees: those with the most accepted tokens by what was accepted on {SEARCHED} other prompts",
            "[ ]: 95 % interval over prompts, of times over prompts and repeats; void: plain decoding differs from "
            "itself by more than 3 %",
        ]


def _engine(target: Loaded, head: str, shape: Topology, length: int) -> Engine:
    drafter = build_shaped(head, target=target, shape=shape)
    return Engine(target, drafter=drafter, num_draft_tokens=shape.depth, batch_size=1, max_length=length)
