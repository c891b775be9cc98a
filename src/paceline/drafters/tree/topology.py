"""Grows a tree of a given topology, depth by depth.

B rows, N nodes, n nodes of a depth, F parents, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.tree import Draw, NoDraft
from paceline.drafters.tree.base import (
    ConfidenceScorer,
    GrownTree,
    NodeScorer,
    TopologyTensors,
    TreeGrower,
    depths_of,
)
from paceline.drafters.tree.samplers import DRAWS_WITH_PROBS, SAMPLERS, TreeLevel, select_nodes
from paceline.drafters.tree.shapes import Chain, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class _Depth:
    """One depth: which parents are scored, and which children are sampled."""

    level: TreeLevel
    paths: Tensor | None  # [F, depth - 1] the nodes from the root to each parent, it included; None: all so far
    expanded: Tensor | None  # which of the nodes sampled last are parents now; None: all of them
    forest: TopologyTensors | None  # all nodes scored so far, these parents last; None below the root
    start: int  # where in the forest the parents begin


@final
class TopologyGrower(TreeGrower):
    """Grows the same topology for every row, with the sampler of ``draw``."""

    def __init__(self, topology: Topology | Chain, draw: Draw, device: torch.device) -> None:
        def index(values: Sequence[int] | Sequence[list[int]]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        def selection(values: Sequence[int], size: int) -> Tensor | None:
            """None if all of ``size`` are selected in their order, for every operation of a step costs time."""
            return None if list(values) == list(range(size)) else index(values)

        parents, ranks = topology.parents, topology.ranks
        levels: list[list[int]] = [[] for _ in range(1 + topology.depth)]
        for node, depth in enumerate(depths_of(parents)):
            levels[depth].append(node)
        first_child = {parent: node for node, parent in reversed(list(enumerate(parents)))}
        expanded = sorted(first_child.keys() - {-1})  # the root first
        order = {node: i for i, node in enumerate(expanded)}
        in_forest = {node: i for i, node in enumerate(expanded[1:])}
        source = [-1, *(order[parent] for parent in parents[1:])] if draw in DRAWS_WITH_PROBS else None
        self.sampler = SAMPLERS[draw]
        self.topology = TopologyTensors.make(parents, device, draw=draw, source=source)
        self.num_expanded = topology.num_expanded
        self.forest_index = index([in_forest.get(node, -1) for node in range(len(parents))])
        self.depths = index(range(1, topology.depth + 1))
        self.steps: list[_Depth] = []
        scored = [in_forest.get(parents[node], -1) for node in expanded[1:]]  # their parents in the forest
        forest = TopologyTensors.make(scored, device)
        paths = None if self.topology.chain else _paths(parents)
        num_scored = 0
        for level in range(1, topology.depth + 1):
            nodes, last = levels[level], levels[level - 1]
            above = [node for node in last if node in order]
            place = {node: i for i, node in enumerate(above)}
            num_scored += len(above) if level > 1 else 0
            width = max(ranks[node] for node in nodes) + 1
            self.steps.append(
                _Depth(
                    level=TreeLevel(
                        parent=selection([place[parents[node]] for node in nodes], len(above)),
                        rank=selection(
                            [place[parents[node]] * width + ranks[node] for node in nodes], len(above) * width
                        ),
                        node=index(nodes),
                        first=index([first_child[node] for node in above]),
                        width=width,
                    ),
                    paths=None if paths is None else index([paths[node] for node in above]),
                    expanded=selection([i for i, node in enumerate(last) if node in order], len(last)),
                    forest=forest.first(num_scored, max_depth=level - 2) if num_scored else None,
                    start=num_scored - len(above),
                )
            )

    def grow(
        self,
        batch: Batch,
        logits: Tensor,
        max_depth: Tensor,
        score_nodes: NodeScorer,
        no_draft_reason: NoDraft,
        confidence: ConfidenceScorer | None = None,
    ) -> GrownTree:
        within = self.depths <= max_depth[:, None]  # [B, D]
        tokens, valid = [batch.root[:, None]], [batch.active[:, None]]
        forest_tokens: list[Tensor] = []
        forest_valid: list[Tensor] = []
        probs: list[Tensor] = []
        above, fixed_rows, chance = valid[0], None, None
        stops_early = self.topology.chain and batch.early_stop.rule is not None
        for depth, step in enumerate(self.steps):
            if step.forest is not None:
                above = select_nodes(valid[-1], step.expanded)
                forest_tokens.append(select_nodes(tokens[-1], step.expanded))
                forest_valid.append(above)
                forest = step.forest.tree(torch.cat(forest_tokens, dim=1), torch.cat(forest_valid, dim=1))
                logits = score_nodes(forest, step.start)
            if batch.processing.any:
                known = torch.cat(tokens, dim=1)
                logits = batch.process(logits, known[:, None, 1:] if step.paths is None else known[:, step.paths])
            sampled = self.sampler(batch, logits, batch.length[:, None] + depth, step.level)
            grows = select_nodes(above, step.level.parent) & within[:, depth : depth + 1]
            tokens.append(sampled.tokens)
            if stops_early:
                odds = None if confidence is None else confidence()
                chance, goes_on = batch.early_stop.follow(chance, logits[:, 0], depth, grows[:, 0], odds)
                grows = grows & goes_on[:, None]
            valid.append(grows if sampled.possible is None else grows & sampled.possible)
            probs += [] if sampled.probs is None else [sampled.probs]
            fixed_rows = sampled.fixed_rows
        tree = self.topology.tree(
            torch.cat(tokens, dim=1),
            torch.cat(valid, dim=1),
            probs=torch.cat(probs, dim=1) if probs else None,
            fixed_rows=fixed_rows,
            no_draft_reason=no_draft_reason,
        )
        return GrownTree(tree=tree, forest_index=self.forest_index.expand_as(tree.tokens))


def _paths(parents: Sequence[int]) -> list[list[int]]:
    """The nodes from the root, which is left out, to each node, which is included."""
    paths: list[list[int]] = [[]]
    for node, parent in enumerate(parents[1:], start=1):
        paths.append([*paths[parent], node])
    return paths
