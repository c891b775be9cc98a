"""Thousands of steps, and whether memory, objects or compilations grow.

An engine with a draft continues prompt after prompt, so that rows end, are given away and are admitted anew all the
time. What is sampled now and then: the process's memory, the tensors and objects that are alive, and the graphs that
torch's compiler has made. All of them must stop growing after a warm-up.
"""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import median
from typing import Annotated

import torch
from rich.console import Console
from torch import Tensor
from torch._dynamo.utils import counters

from benchmarks.decoders import resident
from benchmarks.study import Draft, Target, option, pair_of
from paceline.api import Engine, Loaded, SamplingParams, Stream, load
from paceline.api.prompts import encode
from paceline.bench.columns import Column, Section
from paceline.bench.suites import prompts_of
from paceline.core.plan import Fixed

STEPS, SNAPSHOTS, ROWS, DRAFT_TOKENS = 10_000, 25, 4, 5
LENGTHS = (17, 40, 64, 23, 96, 5)  # tokens of the outputs, in turn
PROMPT = 100  # tokens at most
WARM_UP = 0.2  # of the snapshots, which prove nothing
MIB = 1 << 20
LIMIT = 4.0  # MiB that the process may grow by after it


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What was alive after so many steps."""

    steps: int
    seconds: float
    tokens: int
    resident: int  # bytes
    tensors: int
    objects: int
    graphs: int  # compiled so far in this process


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """From the first to the last third of the snapshots after the warm-up, medians."""

    mib: float
    tensors: int
    objects: int
    graphs: int  # from the end of the warm-up to the end

    def faults(self, limit: float = LIMIT) -> list[str]:
        """What grew, in words; none is what should be."""
        found = [f"the process grew by {self.mib:.1f} MiB, more than {limit:g}"] if self.mib > limit else []
        found += [f"{self.tensors} more tensors are alive"] if self.tensors > 0 else []
        # Some are made on the way and are gone at the next collection; a leak of one a step would be thousands.
        found += [f"{self.objects} more objects are alive"] if self.objects > 100 else []
        return [*found, f"{self.graphs} graphs were compiled after the warm-up"] if self.graphs > 0 else found


def growth_of(snapshots: Sequence[Snapshot]) -> Growth:
    """Raises ValueError for fewer snapshots than five, of which one is the warm-up."""
    if len(snapshots) < 5:
        raise ValueError(f"{len(snapshots)} snapshots: give at least 5")
    kept = snapshots[max(1, round(WARM_UP * len(snapshots))) :]
    third = max(1, len(kept) // 3)

    def grown(name: str) -> float:
        first, last = (median(getattr(one, name) for one in some) for some in (kept[:third], kept[-third:]))
        return last - first

    return Growth(
        mib=grown("resident") / MIB,
        tensors=round(grown("tensors")),
        objects=round(grown("objects")),
        graphs=kept[-1].graphs - kept[0].graphs,
    )


def endure(
    target: Loaded,
    draft: Loaded,
    prompts: Sequence[Sequence[int]],
    *,
    steps: int = STEPS,
    snapshots: int = SNAPSHOTS,
    rows: int = ROWS,
    temperature: float = 0.0,
    compiled: bool = False,
    progress: Callable[[Snapshot], None] | None = None,
) -> list[Snapshot]:
    """Take ``steps`` steps of ``rows`` rows, and record ``snapshots`` times what is alive.

    ``compiled`` runs each phase of a step as one graph of torch's compiler, by its eager backend, instead of the
    kernel. Raises ValueError for fewer steps than snapshots.
    """
    if not 1 <= snapshots <= steps:
        raise ValueError(f"{snapshots} snapshots at {steps} steps: give at least 1, and no more than steps")
    engine = Engine(
        target,
        drafter=draft,
        num_draft_tokens=Fixed(DRAFT_TOKENS),
        batch_size=rows,
        max_length=max(map(len, prompts)) + max(LENGTHS),
    )
    if compiled:
        for phase in ("draft", "score", "decide"):
            call = torch.compile(getattr(engine.decoder, phase), fullgraph=True, backend="aot_eager")
            setattr(engine.decoder, phase, call)
    requests = zip(cycle(prompts), cycle(LENGTHS), strict=False)
    running: list[Stream] = []
    found: list[Snapshot] = []
    begun, tokens = time.perf_counter(), 0
    for step in range(1, steps + 1):
        running = [stream for stream in running if not stream.done]
        while len(running) < rows + 2:  # two that wait
            prompt, length = next(requests)
            params = SamplingParams(max_tokens=length, temperature=temperature, seed=step, ignore_eos=True)
            running.append(engine.submit([list(prompt)], params))
        engine.advance()
        tokens += engine.decoder.results().num_tokens
        if step * snapshots // steps > len(found):
            found.append(_snapshot(step, time.perf_counter() - begun, tokens))
            if progress is not None:
                progress(found[-1])
    return found


def _snapshot(steps: int, seconds: float, tokens: int) -> Snapshot:
    gc.collect()
    alive = gc.get_objects()
    return Snapshot(
        steps=steps,
        seconds=seconds,
        tokens=tokens,
        resident=resident(),
        tensors=sum(issubclass(type(one), Tensor) for one in alive),
        objects=len(alive),
        graphs=counters["stats"]["unique_graphs"],
    )


COLUMNS: list[Column[Snapshot]] = [
    Column("steps", "steps", ","),
    Column("tokens/s", lambda snapshot: snapshot.tokens / snapshot.seconds, ".0f"),
    Column("resident MiB", lambda snapshot: snapshot.resident / MIB, ".1f"),
    Column("tensors", "tensors", ","),
    Column("objects", "objects", ","),
    Column("graphs", "graphs"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endurance:
    """Ten thousand steps, and whether memory, objects or compilations grow."""

    target: Target = None
    draft: Draft = None
    steps: Annotated[int, option("How many.")] = STEPS
    snapshots: Annotated[int, option("How often memory is sampled.")] = SNAPSHOTS
    batch: Annotated[int, option("Rows.")] = ROWS
    temperature: Annotated[float, option("Of sampling.")] = 0.0
    threads: Annotated[int, option("Of torch.")] = 1
    compiled: Annotated[bool, option("Each phase of a step as one graph of torch's compiler.")] = False

    def run(self) -> int:
        """Run and print; the exit code, 1 where something grew."""
        paths = pair_of(self.target, self.draft)
        target, draft = (load(path, dtype="bfloat16", device="cpu", threads=self.threads) for path in paths)
        prompts = [encode(target, text)[:PROMPT] for text in prompts_of("mixed", 8, seed=0)]
        with Console(stderr=True, highlight=False).status("") as status:
            snapshots = endure(
                target,
                draft,
                prompts,
                steps=self.steps,
                snapshots=self.snapshots,
                rows=self.batch,
                temperature=self.temperature,
                compiled=self.compiled,
                progress=lambda snapshot: status.update(f"{snapshot.steps:,} of {self.steps:,} steps"),
            )
        grown = growth_of(snapshots)
        console = Console(highlight=False)
        console.print(Section(title="what is alive", columns=COLUMNS, lines=snapshots).table())
        console.print(
            f"after the warm-up: {grown.mib:+.1f} MiB, {grown.tensors:+d} tensors, {grown.objects:+d} objects, "
            f"{grown.graphs} graphs compiled",
            soft_wrap=True,
        )
        for fault in grown.faults():
            console.print(fault)
        return 1 if grown.faults() else 0
