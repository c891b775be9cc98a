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
from paceline.drafters.tree.base import Frame, Grower, Grown, Read
from paceline.drafters.tree.samplers import RULES, WITH_PROBS, Level, take
from paceline.drafters.tree.shapes import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One depth: what is read for it, and what is drawn."""

    level: Level
    paths: Tensor  # [F, depth - 1] the nodes on the way from the root to each parent, its own included
    inner: Tensor | None  # which of the nodes drawn last are parents now; None: all of them
    forest: Frame | None  # all that is read so far, these parents last; None below the root
    start: int  # where in the forest the parents begin


@final
class TopologyGrower(Grower):
    """Grows the same topology for every row, its tokens drawn as ``draw`` says."""

    def __init__(self, topology: Topology, draw: Draw, device: torch.device) -> None:
        def index(values: Sequence[int] | Sequence[list[int]]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        def selection(values: Sequence[int], size: int) -> Tensor | None:
            """None where all of ``size`` are taken in their order, for every operation of a step costs time."""
            return None if list(values) == list(range(size)) else index(values)

        parents = topology.parents
        ranks = (0, *(node[-1] for node in topology.nodes))
        depth = (0, *(len(node) for node in topology.nodes))
        inner = [node for node in range(len(parents)) if node in parents[1:]]  # the root first
        place = {node: i for i, node in enumerate(inner)}
        read = {node: i for i, node in enumerate(inner[1:])}
        source = [-1, *(place[parent] for parent in parents[1:])] if draw in WITH_PROBS else None
        self.rule = RULES[draw]
        self.frame = Frame(parents, device, draw=draw, source=source)
        self.num_read = topology.num_read
        self.slots = index([read.get(node, -1) for node in range(len(parents))])
        self.depths = index(range(1, topology.depth + 1))
        self.steps: list[_Step] = []
        paths: list[list[int]] = [[]]
        for node, parent in enumerate(parents[1:], start=1):
            paths.append([*paths[parent], node])
        last = [0]
        for level in range(1, topology.depth + 1):
            nodes = [node for node in range(len(parents)) if depth[node] == level]
            above = [node for node in inner if depth[node] == level - 1]
            known = [node for node in inner[1:] if depth[node] < level]
            width = max(ranks[node] for node in nodes) + 1
            self.steps.append(
                _Step(
                    level=Level(
                        parent=selection([above.index(parents[node]) for node in nodes], len(above)),
                        place=selection(
                            [above.index(parents[node]) * width + ranks[node] for node in nodes], len(above) * width
                        ),
                        node=index(nodes),
                        first=index([parents.index(node) for node in above]),
                        width=width,
                    ),
                    paths=index([paths[node] for node in above]),
                    inner=selection([last.index(node) for node in above], len(last)),
                    forest=Frame([read.get(parents[node], -1) for node in known], device) if known else None,
                    start=len(known) - len(above),
                )
            )
            last = nodes

    def grow(self, batch: Batch, logits: Tensor, room: Tensor, read: Read, no_draft_reason: NoDraft) -> Grown:
        within = self.depths <= room[:, None]  # [B, D]
        tokens, valid = [batch.root[:, None]], [batch.active[:, None]]
        seen: list[Tensor] = []  # tokens of the forest, and whether they can be proposed
        known: list[Tensor] = []
        probs: list[Tensor] = []
        above, chosen = valid[0], None
        for depth, step in enumerate(self.steps):
            if step.forest is not None:
                above = take(valid[-1], step.inner)
                seen, known = [*seen, take(tokens[-1], step.inner)], [*known, above]
                logits = read(step.forest.tree(torch.cat(seen, dim=1), torch.cat(known, dim=1)), step.start)
            if batch.processes:
                logits = batch.process(logits, torch.cat(tokens, dim=1)[:, step.paths])
            drawn = self.rule(batch, logits, batch.length[:, None] + depth, step.level)
            grows = take(above, step.level.parent) & within[:, depth : depth + 1]
            tokens.append(batch.guiding.copy(drawn.tokens))
            valid.append(grows if drawn.possible is None else grows & batch.guiding.copy(drawn.possible))
            probs += [] if drawn.probs is None else [drawn.probs]
            chosen = drawn.chosen
        tree = self.frame.tree(
            torch.cat(tokens, dim=1),
            torch.cat(valid, dim=1),
            probs=torch.cat(probs, dim=1) if probs else None,
            chosen=chosen,
            no_draft_reason=no_draft_reason,
        )
        return Grown(tree=tree, slots=self.slots.expand_as(tree.tokens))
