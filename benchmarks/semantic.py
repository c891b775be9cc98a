"""Text-to-semantic models with an early exit: right outputs, acceptance, and time beside plain decoding, repeat by
repeat. Outputs, drafted and plain, are compared too.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import torch
from rich.console import Console

from benchmarks.semantic_data import END, SYMBOLS, Pair, pairs, runs
from benchmarks.study import check_counts, counts, option
from paceline.api import Engine, Loaded, Result, SamplingParams, load, total
from paceline.bench.columns import Column, Section
from paceline.bench.machine import describe
from paceline.bench.statistics import Estimate, estimate, paired_ratios
from paceline.bench.timing import time_in_turn
from paceline.models.backend import fastest
from paceline.models.cpu.decoder import CpuDecoder

PLAIN, SEED = "plain", 9  # of the measured pairs, which training never draws


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One batch size, guidance scale and draft length."""

    batch: int
    scale: float
    k: int
    acceptance: float  # of drafted tokens
    tokens_per_step: float
    alike: float  # of outputs and what the runs of the symbols are, from 0 to 1 (difflib)
    equal: bool  # drafted and plain outputs
    speed: Estimate  # plain seconds over drafted ones


def alike(results: Sequence[Result], asked: Sequence[Pair]) -> float:
    """How alike outputs are to the runs of their texts said as they are, from 0 to 1."""
    table, found = runs(), list[float]()
    for result, pair in zip(results, asked, strict=True):
        wanted = [said for symbol in pair.source for said in table[symbol]]
        own = [token for token in result.token_ids if token != END]
        found.append(SequenceMatcher(None, wanted, own, autojunk=False).ratio())
    return sum(found) / len(found)


def measure(
    target: Loaded,
    head: str,
    asked: Sequence[Pair],
    *,
    batch: int,
    scale: float,
    k: int,
    temperature: float,
    repeats: int,
) -> Measured:
    """``asked`` texts, drafted and plain in turn."""
    room = max(map(len, (pair.output for pair in asked))) + 32
    options = SamplingParams(max_tokens=room, guidance_scale=scale, temperature=temperature, seed=SEED)
    texts = [pair.source for pair in asked]
    outputs: dict[str, list[Result]] = {}

    def runner(drafter: str | None) -> Engine:
        return Engine(
            target,
            drafter=drafter,
            num_draft_tokens=k,
            batch_size=batch,
            max_length=room + 1,
            guidance=scale != 1,
        )

    engines = {PLAIN: runner(None), head: runner(head)}

    def call(name: str) -> None:
        outputs[name] = engines[name].generate(texts, options)

    taken = time_in_turn({name: lambda name=name: call(name) for name in engines}, repeats=repeats, seconds=0.0)
    summary = total(outputs[head])
    return Measured(
        batch=batch,
        scale=scale,
        k=k,
        acceptance=sum(summary.accepted) / max(1, sum(summary.drafted)),
        tokens_per_step=summary.mean_acceptance_length,
        alike=alike(outputs[head], asked),
        equal=[one.token_ids for one in outputs[head]] == [one.token_ids for one in outputs[PLAIN]],
        speed=estimate(paired_ratios(taken[PLAIN], taken[head])),
    )


def section_of(found: Sequence[Measured]) -> Section[Measured]:
    """A table of what was found."""
    return Section(
        title="early exit against plain decoding",
        columns=[
            Column("batch", lambda one: str(one.batch)),
            Column("guidance", lambda one: f"{one.scale:g}"),
            Column("k", lambda one: str(one.k)),
            Column("accepted", lambda one: f"{one.acceptance:.0%}"),
            Column("tokens per step", lambda one: f"{one.tokens_per_step:.2f}"),
            Column("outputs and runs alike", lambda one: f"{one.alike:.3f}"),
            Column("equal to plain", lambda one: "yes" if one.equal else "NO"),
            Column(
                "plain seconds over its own",
                lambda one: f"{one.speed.value:.2f} ({one.speed.low:.2f} to {one.speed.high:.2f})",
            ),
        ],
        lines=list(found),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Semantic:
    """Text-to-semantic models with an early exit against plain decoding, in turn."""

    model: Annotated[Path, option("Directory of the target.")]
    head: Annotated[str, option("Its early exit: a directory, or early_exit:exit_layer=2.")]
    batch: Annotated[tuple[int, ...], counts("Rows.", consume_multiple=True)] = (1, 4)
    k: Annotated[tuple[int, ...], counts("Draft tokens.", consume_multiple=True)] = (4,)
    guidance: Annotated[tuple[float, ...], option("Scales; 1 is off.", consume_multiple=True)] = (1.0, 2.0)
    num_texts: Annotated[int, option("Texts.")] = 8
    repeats: Annotated[int, option("Of every call.")] = 5
    temperature: Annotated[float, option("0: greedy.")] = 0.0
    dtype: Annotated[Literal["float32", "float64", "bfloat16"], option("Precision.")] = "float32"

    def run(self) -> int:
        """Measure and print; the exit code."""
        check_counts(batch=self.batch, k=self.k, num_texts=self.num_texts, repeats=self.repeats)
        target, begin = load(self.model, dtype=self.dtype), time.perf_counter()
        asked = list(islice(pairs(SEED), self.num_texts))
        found = [
            measure(
                target,
                self.head,
                asked,
                batch=batch,
                scale=scale,
                k=k,
                temperature=self.temperature,
                repeats=self.repeats,
            )
            for batch in self.batch
            for scale in self.guidance
            for k in self.k
        ]
        console, machine, runs_as = Console(width=140, highlight=False), describe(), fastest(target.lm)
        isa = runs_as.isa if isinstance(runs_as, CpuDecoder) else "eager"
        threads = torch.get_num_threads()
        console.print(f"{machine.processor}, {threads} threads, {isa}, {self.dtype}; texts of {SYMBOLS} symbols")
        console.print(section_of(found).table())
        console.print(f"{self.num_texts} texts, {self.repeats} repeats, {time.perf_counter() - begin:.0f} s")
        return 0
