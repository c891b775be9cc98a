"""Measures how often the child of each rank is accepted, the input of ``best_topology``.

B rows, N nodes, D depth of a tree, W ranks.
"""

from collections.abc import Hashable
from typing import final

import torch
from torch import Tensor

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.host import integers
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, Outcome, Tree
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.tree.shapes import Topology


def caterpillar(width: int, depth: int) -> Topology:
    """The tree to measure with: a chain of likeliest children whose nodes have ``width`` children each."""
    return Topology(tuple((0,) * level + (rank,) for level in range(depth) for rank in range(width)))


@final
class RankAcceptanceDrafter(Drafter):
    """Wraps another drafter and counts which child is accepted at every accepted node.

    It should draft a ``caterpillar``: other trees try later ranks only below unlikely nodes, if at all.
    """

    draws: frozenset[Draw]
    origins: tuple[str, ...]

    def __init__(self, *, drafter: Drafter, width: int) -> None:
        if width < 1:
            raise ValueError(f"width={width}: give at least 1")
        self.drafter, self.width = drafter, width
        self.taps, self.num_reread, self.draws = drafter.taps, drafter.num_reread, drafter.draws
        self.num_reread_of_prefix, self.last_states = drafter.num_reread_of_prefix, drafter.last_states
        self.origins, self.branches = drafter.origins, drafter.branches
        self.num_unverified, self.num_search_nodes = drafter.num_unverified, drafter.num_search_nodes
        self.num_extra_rows, self.needs_same_tokens = drafter.num_extra_rows, drafter.needs_same_tokens

    @property
    def slot_bytes(self) -> int:
        return self.drafter.slot_bytes

    @property
    def host_state(self) -> Hashable:
        return self.drafter.host_state

    def resume(self, host_state: Hashable) -> None:
        """As the wrapped drafter."""
        self.drafter.resume(host_state)

    def max_nodes(self, num_draft_tokens: int) -> int:
        return self.drafter.max_nodes(num_draft_tokens)

    def start(self, context: DrafterContext) -> None:
        """As the wrapped drafter; counts start at 0."""
        self.drafter.start(context)
        self.tried = torch.zeros(self.width, dtype=torch.int64, device=context.device)
        self.accepted = torch.zeros_like(self.tried)

    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """As the wrapped drafter."""
        self.drafter.prefill(batch, admission, hidden)

    def begin_step(self, batch: Batch, plan: StepPlan) -> None:
        """As the wrapped drafter."""
        self.drafter.begin_step(batch, plan)

    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """The wrapped drafter's tree."""
        return self.drafter.propose(batch, plan)

    def observe_unverified(self, tree: Tree, likeliest: Tensor) -> None:
        """As the wrapped drafter."""
        self.drafter.observe_unverified(tree, likeliest)

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, hidden: dict[int, Tensor]) -> None:
        """As the wrapped drafter, and count."""
        self.drafter.observe(batch, tree, outcome, hidden)
        tried, accepted = self._count(tree, outcome)
        self.tried.add_(tried)
        self.accepted.add_(accepted)

    def acceptance_by_rank(self) -> list[float]:
        """The share of children of each rank that were accepted; 0 for ranks that no node had."""
        pairs = zip(integers(self.accepted), integers(self.tried), strict=True)
        return [accepted / tried if tried else 0.0 for accepted, tried in pairs]

    def _count(self, tree: Tree, outcome: Outcome) -> tuple[Tensor, Tensor]:
        """Children of nodes that were reached, and those that were accepted, by rank [W]."""
        nodes = torch.arange(tree.num_nodes, device=tree.tokens.device)
        above = (tree.depth - 1).clamp(min=0)
        path = torch.nn.functional.pad(outcome.path, (1, 1), value=-1)  # [B, D + 2]
        path = torch.where(torch.arange(path.shape[1], device=path.device) == 0, 0, path)
        reached = path.gather(1, above) == tree.parents
        decided = tree.valid & (tree.depth > 0) & reached & (above < outcome.num_committed[:, None])
        accepted = decided & (path.gather(1, tree.depth) == nodes)
        siblings = (tree.parents[:, :, None] == tree.parents[:, None, :]) & (nodes[None, :] < nodes[:, None])
        rank = siblings.sum(-1)[..., None] == torch.arange(self.width, device=nodes.device)  # [B, N, W]
        return (rank & decided[..., None]).sum((0, 1)), (rank & accepted[..., None]).sum((0, 1))
