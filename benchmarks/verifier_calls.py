"""Trees and logits to time verifiers on, and calls of verifiers. Times nothing.

B rows, N nodes, D depth, V vocabulary. Trees are grown as a drafter grows them, from distributions made for the
purpose. After a depth every sequence has the same distribution, so siblings that are the same token have the same
distribution after them too, as every verifier may suppose.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor

from benchmarks.decoders import noise_on, start_rows
from benchmarks.study import check_counts, plural
from paceline.core.batch import Batch
from paceline.core.request import Request
from paceline.core.sampling import Sampling
from paceline.core.scores import Scores
from paceline.core.tree import Draw, NoDraft, Outcome, Tree
from paceline.drafters.tree.shapes import Topology
from paceline.drafters.tree.topology import TopologyGrower
from paceline.verifiers import VERIFIERS
from paceline.verifiers.base import Verifier

SPREAD = 2.0  # standard deviation of the draft's logits
# Of the target's logits from the draft's: two distributions of many tokens share 2 Phi(-0.77 / 2) = 70 % of their mass.
DISTANCE = 0.77
PROMPT = [0] * 16
CPU = torch.device("cpu")
TREE = "tree of 48"

Timed: TypeAlias = tuple[str, float]  # a registered verifier and a temperature


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What all verifiers are timed on in turn. Raises ValueError for counts that leave nothing to verify."""

    num_rows: int
    vocab_size: int
    num_draft_tokens: int  # of a chain; 0 for the tree

    def __post_init__(self) -> None:
        check_counts(rows=self.num_rows)
        check_counts(0, k=self.num_draft_tokens)
        check_counts(16, vocab=self.vocab_size)  # so that a tree has some to choose from

    @property
    def shape(self) -> str:
        return f"k = {self.num_draft_tokens}" if self.num_draft_tokens else TREE

    @property
    def topology(self) -> Topology:
        chain = self.num_draft_tokens
        return Topology.chain(chain) if chain else Topology.branching((3, 3, 2, 1))

    @property
    def name(self) -> str:
        return f"{plural(self.num_rows)}, vocabulary {self.vocab_size}, {self.shape}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a verifier, ready to be timed, and what it must read at the least."""

    draw: Draw
    logits_bytes: int
    draft_probs_bytes: int  # 0 for draws that record none
    run: Callable[[], Outcome]


@final
class Calls:
    """The logits of a cell, and the trees drawn so far: verifiers that take the same draw get the same tree."""

    def __init__(self, cell: Cell, *, seed: int = 0) -> None:
        self.cell, self.topology = cell, cell.topology
        generator = torch.Generator().manual_seed(seed)
        size = (cell.num_rows, self.topology.depth + 1, cell.vocab_size)
        self.draft = torch.randn(size, generator=generator).mul_(SPREAD)  # [B, D + 1, V] after each depth
        target = torch.randn(size, generator=generator).mul_(DISTANCE).add_(self.draft)
        self.logits = target.index_select(1, torch.tensor([0, *map(len, self.topology.nodes)]))  # [B, N, V]
        self.root_logits = target[:, :1].clone()
        self._drawn: dict[tuple[Draw, float], tuple[Batch, Tree]] = {}

    def plain(self, temperature: float) -> Call:
        """One token for every row from [B, 1, V], as plain decoding picks it."""
        batch, verifier = self._batch(temperature), VERIFIERS.find("coupled")()
        root = batch.root[:, None]
        tree = Tree.make_chain(root, torch.ones_like(root, dtype=torch.bool), draw=verifier.wants[0])
        return self._call(verifier, tree, self.root_logits, batch)

    def call(self, name: str, temperature: float) -> Call:
        """A call of a verifier. Raises ValueError, saying why, where it does not take the cell's shape."""
        verifier: Verifier = VERIFIERS.find(name)()
        if not (self.topology.max_width <= 1 or verifier.branches):
            raise ValueError("takes chains alone")
        draw = verifier.wants[0]
        if (draw, temperature) not in self._drawn:
            batch = self._batch(temperature)
            self._drawn[draw, temperature] = batch, self._grow(batch, draw)
        batch, tree = self._drawn[draw, temperature]
        return self._call(verifier, tree, self.logits, batch)

    @staticmethod
    def _call(verifier: Verifier, tree: Tree, logits: Tensor, batch: Batch) -> Call:
        scores = Scores.of(logits)
        return Call(
            draw=verifier.wants[0],
            logits_bytes=logits.nbytes,
            draft_probs_bytes=0 if tree.probs is None else tree.probs.nbytes,
            run=lambda: verifier(tree, scores, batch),
        )

    def _batch(self, temperature: float) -> Batch:
        rows, depth = self.cell.num_rows, self.topology.depth
        batch = Batch(
            rows=rows,
            max_length=len(PROMPT) + depth + 1,
            max_depth=depth,
            vocab_size=self.cell.vocab_size,
            noise=noise_on(CPU),
            device=CPU,
        )
        options = [Sampling(temperature=temperature, seed=row) for row in range(rows)]
        start_rows(batch, [Request(tokens=PROMPT, max_tokens=depth + 1, sampling=one) for one in options])
        return batch

    @torch.inference_mode()
    def _grow(self, batch: Batch, draw: Draw) -> Tree:
        def read(forest: Tree, start: int) -> Tensor:
            return self.draft.index_select(1, forest.depth[0, start:] + 1)

        grower = TopologyGrower(self.topology, draw, CPU)
        return grower.grow(batch, self.draft[:, :1], batch.draft_room, read, NoDraft.DECLINED).tree
