"""Steps of a chosen size, timed by rows, nodes and context, one axis at a time.

B rows, N nodes, S attended slots. The cache is filled with random numbers instead of those of prompts: what a step
costs does not depend on them, and reading 64 prompts would take longer than measuring.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import final

import psutil
import torch

from benchmarks.decoders import make_decoder, start_rows
from benchmarks.study import Progress, Timing, check_counts, missing
from paceline.bench.raw import RawFile, Record
from paceline.bench.statistics import is_void, paired_ratios
from paceline.bench.timing import time_in_turn
from paceline.core.batch import Batch
from paceline.core.request import Request
from paceline.core.sampling import Sampling
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, Tree
from paceline.drafters.base import StatelessDrafter
from paceline.models.base import LM, LogitsFor

FORWARD, STEP, CONTROL = "forward", "step", "control"
CHAIN, TREE = "chain", "tree"
NUM_CHILDREN = 2  # of a tree's nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One step: ``rows`` rows of ``nodes`` nodes, root included, each attending to ``context`` slots. All counts >= 1.

    ``shape`` is CHAIN or TREE, in which every node has two children, level by level.
    """

    rows: int
    nodes: int
    context: int
    shape: str = CHAIN

    def __post_init__(self) -> None:
        check_counts(rows=self.rows, nodes=self.nodes, context=self.context)

    @property
    def depth(self) -> int:
        """Of the deepest node."""
        return self.nodes - 1 if self.shape == CHAIN else self.nodes.bit_length() - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Points that differ in one count, timed in turn."""

    name: str
    points: tuple[Point, ...]


def axes_of(rows: Sequence[int], nodes: Sequence[int], contexts: Sequence[int]) -> list[Axis]:
    """The three axes through the smallest rows, nodes and context. Raises ValueError for none and for counts below 1.

    The axis of nodes has chains and trees; one node is both and is there once.
    """
    check_counts(rows=rows, nodes=nodes, context=contexts)
    row, node, context = min(rows), min(nodes), min(contexts)
    chains = [Point(rows=row, nodes=count, context=context) for count in sorted(set(nodes))]
    trees = [Point(rows=row, nodes=one.nodes, context=context, shape=TREE) for one in chains if one.nodes > 2]
    return [
        Axis(name="rows", points=tuple(Point(rows=count, nodes=node, context=context) for count in sorted(set(rows)))),
        Axis(name="nodes", points=(*chains, *trees)),
        Axis(
            name="context", points=tuple(Point(rows=row, nodes=node, context=count) for count in sorted(set(contexts)))
        ),
    ]


@final
class FixedTokens(StatelessDrafter):
    """Proposes the same random tokens in every step, at no cost: what is left of a step without drafting."""

    draws = frozenset({Draw.FIXED})
    branches = True

    def __init__(self, point: Point, vocab_size: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        size = (point.rows, point.nodes)
        self._tokens = torch.randint(vocab_size, size, generator=generator).to(device)
        self._parents = ((torch.arange(point.nodes, device=device) - 1) // NUM_CHILDREN).expand(size)
        self._point = point

    def max_nodes(self, num_draft_tokens: int) -> int:
        """All of the point's."""
        return self._point.nodes

    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """Random tokens below each row's newest one."""
        tokens = torch.cat((batch.root[:, None], self._tokens[:, 1:]), dim=1)
        valid = batch.active[:, None].repeat(1, self._point.nodes)
        if self._point.shape == CHAIN:
            return Tree.make_chain(tokens, valid)
        return Tree.make(tokens, self._parents, valid, max_depth=plan.num_draft_tokens)


@final
class Step:
    """A decoder before the step of a point, and what its making took."""

    def __init__(self, point: Point, target: LM) -> None:
        self.point = point
        gc.collect()
        before = resident()
        depth = point.depth
        length = point.context + depth + 2  # no row ends in the step
        self.decoder = make_decoder(
            target,
            drafter=FixedTokens(point, target.vocab_size, target.device),
            num_draft_tokens=depth,
            rows=point.rows,
            max_length=length,
        )
        tokens = [token % target.vocab_size for token in range(point.context)]
        request = Request(tokens=tokens, max_tokens=depth + 2, sampling=Sampling(temperature=0.0))
        start_rows(self.decoder.batch, [request] * point.rows)
        storage = self.decoder.cache.storage
        for store in (storage.keys, storage.values):
            store[:, : point.rows, : point.context].normal_()
        self.cache_bytes = storage.keys.nbytes + storage.values.nbytes
        self.used_bytes = point.rows * (point.context - 1 + point.nodes) * target.slot_bytes
        self._tree: Tree = self._ready()
        self.step()
        self.resident_bytes = resident() - before

    def step(self) -> None:
        """One whole step, verification and commit included."""
        self.decoder.step()

    @torch.inference_mode()
    def forward(self) -> None:
        """The target's forward of that step."""
        self.decoder.target.unguided(self._tree, self.decoder.cache, logits_for=LogitsFor.ALL)

    @torch.inference_mode()
    def rewind(self) -> None:
        """To before the step: untimed."""
        self._ready()

    @torch.inference_mode()
    def _ready(self) -> Tree:
        batch = self.decoder.batch
        batch.length.fill_(self.point.context)
        batch.finish.zero_()
        batch.active.fill_(True)
        self.decoder.cache.truncate(self.point.context - 1)
        return self.decoder.drafter.propose(batch, self.decoder.plan())


def resident() -> int:
    """Bytes of this process that are in memory."""
    return psutil.Process().memory_info().rss


def measure_axes(axes: Sequence[Axis], *, target: LM, raw: RawFile, run: str, timing: Timing, say: Progress) -> None:
    """Put into ``raw`` what it lacks of ``axes``: seconds of forwards and of whole steps, and bytes, of every point.

    All points of an axis take turns; the first one's step runs twice in each turn, as the control.
    """

    def identify(axis: Axis) -> Record:
        return {"kind": "axis", "run": run, "axis": axis.name, "points": [asdict(point) for point in axis.points]}

    for axis, identity in missing(raw, axes, identify, say):
        Step(axis.points[-1], target)  # what is made once in a process is not a point's own
        steps = [Step(point, target) for point in axis.points]
        calls: dict[str, Callable[[], object]] = {CONTROL: steps[0].step}
        before: dict[str, Callable[[], object]] = {CONTROL: steps[0].rewind}
        for at, step in enumerate(steps):
            calls |= {f"{FORWARD} {at}": step.forward, f"{STEP} {at}": step.step}
            before |= {f"{FORWARD} {at}": step.rewind, f"{STEP} {at}": step.rewind}
        taken = time_in_turn(calls, before=before, repeats=timing.repeats, seconds=timing.seconds, clock=timing.clock)
        control = paired_ratios(taken[f"{STEP} 0"], taken[CONTROL])
        found = [
            {
                FORWARD: list(taken[f"{FORWARD} {at}"]),
                STEP: list(taken[f"{STEP} {at}"]),
                "cache_bytes": step.cache_bytes,
                "used_bytes": step.used_bytes,
                "resident_bytes": step.resident_bytes,
            }
            for at, step in enumerate(steps)
        ]
        raw.append({**identity, "control": median(control), "void": is_void(control), "found": found})
