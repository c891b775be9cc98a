"""Grows a tree of a given topology level by level. Knows no model and no cache.

B rows, N nodes, n nodes of a level, F parents, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.tree import Draw, NoDraft
from paceline.drafters.grow.base import Frame, Grower, Grown, Read
from paceline.drafters.grow.draws import RULES, Level
from paceline.drafters.grow.shapes import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One depth: what is read for it, and what is drawn."""

    level: Level
    parents: Tensor  # [n] index in the tree
    forest: Frame | None  # all that is read so far, these parents last; None below the root
    start: int  # where in the forest the parents begin


@final
class TopologyGrower(Grower):
    """Grows the same topology for every row, its tokens drawn as ``draw`` says."""

    def __init__(self, topology: Topology, draw: Draw, device: torch.device) -> None:
        def index(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        parents = topology.parents
        ranks = (0, *(node[-1] for node in topology.nodes))
        depth = (0, *(len(node) for node in topology.nodes))
        inner = [node for node in range(len(parents)) if node in parents[1:]]  # the root first
        place = {node: i for i, node in enumerate(inner)}
        read = {node: i for i, node in enumerate(inner[1:])}
        self.draw, self.rule = draw, RULES[draw]
        self.frame = Frame(parents, device)
        self.num_read = len(read)
        self.read = index(inner[1:])
        self.slots = index([read.get(node, -1) for node in range(len(parents))])
        self.law = index([-1, *(place[parent] for parent in parents[1:])])
        self.steps: list[_Step] = []
        for level in range(1, topology.depth + 1):
            nodes = [node for node in range(len(parents)) if depth[node] == level]
            above = [node for node in inner if depth[node] == level - 1]
            known = [node for node in inner[1:] if depth[node] < level]
            self.steps.append(
                _Step(
                    level=Level(
                        parent=index([above.index(parents[node]) for node in nodes]),
                        rank=index([ranks[node] for node in nodes]),
                        node=index(nodes),
                        first=index([parents.index(node) for node in above]),
                        width=max(ranks[node] for node in nodes) + 1,
                    ),
                    parents=index([parents[node] for node in nodes]),
                    forest=Frame([read.get(parents[node], -1) for node in known], device) if known else None,
                    start=len(known) - len(above),
                )
            )

    def grow(self, batch: Batch, logits: Tensor, room: Tensor, read: Read, blame: NoDraft) -> Grown:
        tokens, valid = batch.root[:, None], batch.active[:, None]
        laws: list[Tensor] = []
        chosen = None
        for depth, step in enumerate(self.steps, start=1):
            if step.forest is not None:
                nodes = self.read[: step.forest.parents.shape[0]]
                logits = read(step.forest.tree(tokens[:, nodes], valid[:, nodes]), step.start)
            drawn = self.rule(batch, logits, batch.length[:, None] + depth - 1, step.level)
            grows = drawn.possible & valid[:, step.parents] & (depth <= room)[:, None]
            tokens, valid = torch.cat((tokens, drawn.tokens), dim=1), torch.cat((valid, grows), dim=1)
            laws += [] if drawn.laws is None else [drawn.laws]
            chosen = drawn.chosen
        law, draw = self.law.expand_as(tokens), torch.full_like(tokens, int(self.draw))
        if not laws:
            law = torch.full_like(tokens, -1)
        if chosen is not None:
            law = torch.where(chosen[:, None], -1, law)
            draw = torch.where(chosen[:, None], int(Draw.FIXED), draw)
        together = torch.cat(laws, dim=1) if laws else None
        tree = self.frame.tree(tokens, valid, draw=draw, law=law, laws=together, blame=blame)
        return Grown(tree=tree, slots=self.slots.expand_as(tokens))
