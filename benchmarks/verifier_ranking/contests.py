"""Every verifier with every draft that suits it, timed in turn on the same prompts and seeds. Draws no figure.

A contest is one way to sample: a temperature and a top-p. In it plain decoding, twice, and all ways to draft decode the
same prompts with the same seeds, text by text in turn (bench/runner); what one contest gave is appended to a file at
once, and what the file holds is not measured again unless the machine was not quiet.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

from paceline.api import Loaded
from paceline.bench.own import continuing
from paceline.bench.raw import CONTEST, RUN, RawFile, Record, fingerprint
from paceline.bench.runner import Configuration, Measured, compare
from paceline.bench.statistics import is_void
from paceline.drafters.model import ModelDrafter
from paceline.drafters.tree.shapes import Topology
from paceline.models.base import LM

PLAIN, CONTROL = "plain", "control"
CHAINS = ((1, 1), (1, 1, 1, 1), (1, 1, 1, 1, 1, 1))
TREES = ((2, 1), (2, 1, 1), (2, 2, 1))
OF_CHAINS = ("coupled", "rejection", "block")
OF_TREES = ("coupled", "recursive", "traversal", "spectr")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A verifier, and the draft that it verifies: how many children every node of a level has."""

    verifier: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.verifier} {name_of(self.shape)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """How the target is sampled."""

    temperature: float
    top_p: float

    def __str__(self) -> str:
        return f"T={self.temperature:g}" + (f", top-p {self.top_p:g}" if self.top_p < 1 else "")


def name_of(shape: Sequence[int]) -> str:
    """How a shape is called."""
    return f"chain of {len(shape)}" if max(shape) == 1 else "tree " + "x".join(map(str, shape))


def all_ways(chains: Sequence[tuple[int, ...]] = CHAINS, trees: Sequence[tuple[int, ...]] = TREES) -> list[Way]:
    """Every rule with every shape that it is meant for."""
    return [
        Way(verifier=verifier, shape=shape)
        for shapes, verifiers in ((chains, OF_CHAINS), (trees, OF_TREES))
        for shape in shapes
        for verifier in verifiers
    ]


def run_contests(
    contests: Sequence[Contest],
    ways: Sequence[Way],
    *,
    target: Loaded,
    draft: LM,
    prompts: Sequence[Sequence[int]],
    num_seeds: int,
    num_tokens: int,
    seed: int,
    raw: RawFile,
    conditions: Record,
    notes: Record,
    processor_time: bool = False,
    progress: Callable[[Contest, str], None] | None = None,
) -> str:
    """Measure what ``raw`` lacks of ``contests``; the fingerprint of the run.

    Every prompt is continued by ``num_tokens`` tokens with ``num_seeds`` seeds of its own. A contest in which plain
    decoding differed from itself is measured again, once a call. ``processor_time`` counts what the thread computed
    instead of what passed. Raises ValueError for counts below 1, and for processor time on several threads.
    """
    for name, value in (("num_seeds", num_seeds), ("num_tokens", num_tokens), ("number of prompts", len(prompts))):
        if value < 1:
            raise ValueError(f"{name}={value}: give at least 1")
    if processor_time and torch.get_num_threads() > 1:
        raise ValueError(f"processor time of {torch.get_num_threads()} threads is the sum of theirs: take one thread")
    counts = {
        "num_prompts": len(prompts),
        "num_seeds": num_seeds,
        "num_tokens": num_tokens,
        "seed": seed,
        "processor_time": processor_time,
    }
    whole = {**conditions, **counts, "ways": [asdict(way) for way in ways]}
    run = fingerprint(whole)
    if not any(record["kind"] == RUN and record["run"] == run for record in raw.records):
        raw.append({"kind": RUN, "run": run, "conditions": whole, "notes": notes})
    texts = [prompt for _ in range(num_seeds) for prompt in prompts]
    for contest in contests:
        identity = {"kind": CONTEST, "run": run, "contest": asdict(contest)}
        if any(identity.items() <= record.items() and not record["void"] for record in raw.records):
            continue

        def configure(
            name: str,
            drafter: ModelDrafter | None = None,
            depth: int = 0,
            verifier: str = "coupled",
            contest: Contest = contest,
        ) -> Configuration:
            return continuing(
                name,
                target=target,
                prompts=texts,
                num_tokens=num_tokens,
                drafter=drafter,
                num_draft_tokens=depth,
                batch_size=1,
                temperature=contest.temperature,
                top_p=contest.top_p,
                seed=seed,
                verifier=verifier,
            )

        drafted = [
            configure(
                str(way),
                ModelDrafter(lm=draft, shape=Topology.branching(way.shape)),
                len(way.shape),
                way.verifier,
            )
            for way in ways
        ]
        sides = [configure(PLAIN), *drafted, configure(CONTROL)]
        for side in sides:  # one text each, so that nothing is built or compiled while others are timed
            side.parts[0]()
        compared = compare(
            sides,
            baseline=PLAIN,
            repeats=1,
            warm_up=0,
            clock=time.process_time if processor_time else time.perf_counter,
            progress=None if progress is None else lambda what, contest=contest: progress(contest, what),
        )
        sides_taken = {measured.name: _record(measured) for measured in compared.measured}
        raw.append({**identity, "void": is_void([compared[CONTROL].speedup.median]), "sides": sides_taken})
    return run


def _record(measured: Measured) -> dict[str, list[float] | list[int]]:
    """Of every text: seconds, tokens and steps."""
    sample = measured.sample
    assert sample.texts is not None
    return {
        "seconds": list(measured.part_seconds[0]),
        "tokens": [len(tokens) for tokens in sample.tokens],
        "steps": [summary.steps for summary in sample.texts],
    }
