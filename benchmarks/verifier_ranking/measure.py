"""Which verifier gains most, by measurement: every verifier with every draft that suits it, in turn.

A condition is one way to sample: a temperature and a top-p. In it plain decoding, twice, and all ways to draft decode
the same prompts with the same seeds, prompt by prompt in turn (bench/runner).
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from benchmarks.study import (
    Progress,
    check_counts,
    missing,
)
from paceline.api import Loaded
from paceline.bench.generation import decoding
from paceline.bench.raw import RawFile, Record
from paceline.bench.runner import Configuration, Measured, compare
from paceline.bench.statistics import is_void
from paceline.drafters.model import ModelDrafter
from paceline.drafters.tree.shapes import Topology
from paceline.models.base import LM

KIND = "contest"
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

    @property
    def draft(self) -> str:
        """What the shape is called."""
        return f"chain of {len(self.shape)}" if max(self.shape) == 1 else "tree " + "x".join(map(str, self.shape))

    def __str__(self) -> str:
        return f"{self.verifier} {self.draft}"


def all_ways(chains: Sequence[tuple[int, ...]] = CHAINS, trees: Sequence[tuple[int, ...]] = TREES) -> list[Way]:
    """Every verifier with every shape that it is meant for."""
    return [
        Way(verifier=verifier, shape=shape)
        for shapes, verifiers in ((chains, OF_CHAINS), (trees, OF_TREES))
        for shape in shapes
        for verifier in verifiers
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """How the target is sampled."""

    temperature: float
    top_p: float

    @property
    def name(self) -> str:
        return f"T={self.temperature:g}" + (f", top-p {self.top_p:g}" if self.top_p < 1 else "")


def measure_conditions(
    conditions: Sequence[Condition],
    ways: Sequence[Way],
    *,
    target: Loaded,
    draft: LM,
    prompts: Sequence[Sequence[int]],
    num_seeds: int,
    num_tokens: int,
    seed: int,
    raw: RawFile,
    run: str,
    clock: Callable[[], float],
    say: Progress = lambda _: None,
) -> None:
    """Put into ``raw`` what it lacks of ``conditions``.

    Every prompt is continued by ``num_tokens`` tokens with ``num_seeds`` seeds of its own.
    """
    check_counts(num_seeds=num_seeds, num_tokens=num_tokens, num_prompts=len(prompts))

    def identify(condition: Condition) -> Record:
        return {"kind": KIND, "run": run, "contest": asdict(condition)}

    for condition, identity in missing(raw, conditions, identify, say):

        def configure(name: str, way: Way | None = None, condition: Condition = condition) -> Configuration:
            return decoding(
                name,
                target=target,
                prompts=[prompt for _ in range(num_seeds) for prompt in prompts],
                num_tokens=num_tokens,
                drafter=None if way is None else ModelDrafter(lm=draft, shape=Topology.branching(way.shape)),
                num_draft_tokens=0 if way is None else len(way.shape),
                batch_size=1,
                temperature=condition.temperature,
                top_p=condition.top_p,
                seed=seed,
                verifier="coupled" if way is None else way.verifier,
            )

        sides = [configure(PLAIN), *(configure(str(way), way) for way in ways), configure(CONTROL)]
        for side in sides:  # one prompt each, so that nothing is built or compiled while others are timed
            side.parts[0]()
        compared = compare(sides, baseline=PLAIN, repeats=1, warm_up=0, clock=clock, progress=say)
        taken = {measured.name: _record(measured) for measured in compared.measured}
        raw.append({**identity, "void": is_void([compared[CONTROL].speedup.median]), "sides": taken})


def _record(measured: Measured) -> dict[str, list[float] | list[int]]:
    """Of every prompt: seconds, tokens and steps."""
    sample = measured.sample
    assert sample.texts is not None
    return {
        "seconds": list(measured.part_seconds[0]),
        "tokens": [len(tokens) for tokens in sample.tokens],
        "steps": [summary.steps for summary in sample.texts],
    }
