"""Trees and logits to time verifiers on, grown as a drafter grows them, from laws made for the purpose. Times nothing.

B rows, N nodes, D depth, V vocabulary. After a depth every text has the same law, so siblings that are the same token
have the same law after them too, as every rule may suppose.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.request import Request
from paceline.core.sampling import Sampling
from paceline.core.tree import Draw, NoDraft, Outcome, Tree
from paceline.drafters.tree.shapes import Topology
from paceline.drafters.tree.topology import TopologyGrower
from paceline.engine.runner import parts_for
from paceline.verifiers import VERIFIERS
from paceline.verifiers.base import Verifier

SPREAD = 2.0  # standard deviation of the draft's logits
# Of the target's logits from the draft's: two laws of many tokens share 2 Phi(-0.77 / 2) = 70 % of their mass then.
DISTANCE = 0.77
PLAIN = "coupled"  # picks for plain decoding
PROMPT = [0] * 16
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A draft to verify."""

    name: str
    topology: Topology

    @property
    def chain(self) -> bool:
        return self.topology.max_width <= 1


def chain_of(num_draft_tokens: int) -> Shape:
    """Raises ValueError for fewer than 1 token."""
    if num_draft_tokens < 1:
        raise ValueError(f"k={num_draft_tokens}: give at least 1 draft token; a plain pick is timed anyway")
    return Shape(name=f"k = {num_draft_tokens}", topology=Topology.chain(num_draft_tokens))


TREE = Shape(name="tree of 48", topology=Topology.branching((3, 3, 2, 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What all rules are timed on in turn. Raises ValueError for counts that leave nothing to verify."""

    num_rows: int
    vocab_size: int
    shape: Shape

    def __post_init__(self) -> None:
        if self.num_rows < 1:
            raise ValueError(f"rows={self.num_rows}: give at least 1")
        if self.vocab_size < 16:
            raise ValueError(
                f"vocab={self.vocab_size}: give at least 16 tokens, so that a tree has some to choose from"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A registered verifier at a temperature."""

    verifier: str
    temperature: float = 1.0

    @property
    def name(self) -> str:
        return self.verifier if self.temperature else f"{self.verifier}, T = 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a rule, ready to be timed, and what it must read at the least."""

    draw: Draw
    logits_bytes: int
    laws_bytes: int  # of the draft's laws; 0 for draws that record none
    run: Callable[[], Outcome]


@final
class Prepared:
    """The logits of a cell, and the trees drawn so far: rules that take the same draw get the same tree."""

    def __init__(self, cell: Cell, *, seed: int = 0) -> None:
        self.cell = cell
        generator = torch.Generator().manual_seed(seed)
        size = (cell.num_rows, cell.shape.topology.depth + 1, cell.vocab_size)
        self.draft = torch.randn(size, generator=generator).mul_(SPREAD)  # [B, D + 1, V] after each depth
        target = torch.randn(size, generator=generator).mul_(DISTANCE).add_(self.draft)
        depth = torch.tensor([0, *(len(node) for node in cell.shape.topology.nodes)])
        self.logits = target.index_select(1, depth)  # [B, N, V]
        self.root_logits = target[:, :1].clone()
        self._drawn: dict[tuple[Draw, float], tuple[Batch, Tree]] = {}

    def plain(self, temperature: float) -> Call:
        """One token for every row from [B, 1, V], as plain decoding picks it."""
        batch, verifier = self._batch(temperature), _verifier(PLAIN)
        root = batch.root[:, None]
        tree = Tree.make_chain(root, torch.ones_like(root, dtype=torch.bool), draw=verifier.wants[0])
        return self._call(verifier, tree, self.root_logits, batch)

    def call(self, rule: Rule) -> Call:
        """A call of ``rule``. Raises ValueError, saying why, where the rule does not take the cell's shape."""
        verifier = _verifier(rule.verifier)
        if not (self.cell.shape.chain or verifier.branches):
            raise ValueError("takes chains alone")
        draw = verifier.wants[0]
        if (draw, rule.temperature) not in self._drawn:
            batch = self._batch(rule.temperature)
            self._drawn[draw, rule.temperature] = batch, self._grow(batch, draw)
        batch, tree = self._drawn[draw, rule.temperature]
        return self._call(verifier, tree, self.logits, batch)

    @staticmethod
    def _call(verifier: Verifier, tree: Tree, logits: Tensor, batch: Batch) -> Call:
        return Call(
            draw=verifier.wants[0],
            logits_bytes=logits.nbytes,
            laws_bytes=0 if tree.probs is None else tree.probs.nbytes,
            run=lambda: verifier(tree, logits, batch),
        )

    def _batch(self, temperature: float) -> Batch:
        rows, depth = self.cell.num_rows, self.cell.shape.topology.depth
        limit = depth + 1
        batch = Batch(
            rows=rows,
            max_length=len(PROMPT) + limit,
            max_depth=depth,
            vocab_size=self.draft.shape[-1],
            noise=parts_for(CPU).noise,
            device=CPU,
        )
        options = [Sampling(temperature=temperature, seed=row) for row in range(rows)]
        batch.admit(range(rows), [Request(tokens=PROMPT, max_tokens=limit, sampling=one) for one in options])
        return batch

    @torch.inference_mode()
    def _grow(self, batch: Batch, draw: Draw) -> Tree:
        def read(forest: Tree, start: int) -> Tensor:
            return self.draft.index_select(1, forest.depth[0, start:] + 1)

        grower = TopologyGrower(self.cell.shape.topology, draw, CPU)
        return grower.grow(batch, self.draft[:, :1], batch.draft_room, read, NoDraft.DECLINED).tree


def _verifier(name: str) -> Verifier:
    return VERIFIERS.find(name)()
