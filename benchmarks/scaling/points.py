"""Steps of a chosen size to time: rows, nodes and context as asked for, one axis at a time. Times nothing.

B rows, N nodes, S attended slots. The cache is filled with random numbers instead of a text that was read: what a step
costs does not depend on them, and reading 64 texts would take longer than measuring.
"""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import psutil
import torch

from paceline.core.batch import Batch
from paceline.core.plan import Fixed, StepPlan
from paceline.core.request import Request
from paceline.core.sampling import Sampling
from paceline.core.tree import Draw, Tree
from paceline.decode import Decoder
from paceline.drafters.base import StatelessDrafter
from paceline.engine.runner import parts_for
from paceline.models.base import LM, LogitsFor
from paceline.verifiers import VERIFIERS

ROWS = NODES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192)
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
        for name, value in (("rows", self.rows), ("nodes", self.nodes), ("context", self.context)):
            if value < 1:
                raise ValueError(f"{name}={value}: give at least 1")

    @property
    def depth(self) -> int:
        """Of the deepest node."""
        return self.nodes - 1 if self.shape == CHAIN else self.nodes.bit_length() - 1

    def __str__(self) -> str:
        return f"{self.rows} x {self.nodes} ({self.shape}), context {self.context}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Points that differ in one count, timed in turn."""

    name: str
    points: tuple[Point, ...]


def axes_of(rows: Sequence[int], nodes: Sequence[int], contexts: Sequence[int]) -> list[Axis]:
    """The three axes through the smallest rows, nodes and context. Raises ValueError for none and for counts below 1.

    The axis of nodes has chains and trees; one node is both and stands there once.
    """
    for name, values in (("rows", rows), ("nodes", nodes), ("context", contexts)):
        if not values:
            raise ValueError(f"no {name}: give at least one number")
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
class Given(StatelessDrafter):
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
class Prepared:
    """A decoder that stands before the step of a point, and what its making took."""

    def __init__(self, point: Point, target: LM) -> None:
        self.point = point
        gc.collect()
        before = resident()
        depth = point.depth
        length = point.context + depth + 2  # no row ends in the step
        self.decoder = Decoder(
            target=target,
            drafter=Given(point, target.vocab_size, target.device),
            verifier=VERIFIERS.find("coupled")(),
            plan=Fixed(depth),
            rows=point.rows,
            max_length=length,
            parts=parts_for(target.device),
        )
        rows = range(point.rows)
        text = [token % target.vocab_size for token in range(point.context)]
        request = Request(tokens=text, max_tokens=depth + 2, sampling=Sampling(temperature=0.0))
        self.decoder.batch.admit(rows, [request] * point.rows)
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
        self.decoder.target(self._tree, self.decoder.cache, logits_for=LogitsFor.ALL)

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
        return self.decoder.drafter.propose(batch, self.decoder.plan(self.decoder.stats))


def resident() -> int:
    """Bytes of this process that lie in memory."""
    return psutil.Process().memory_info().rss
