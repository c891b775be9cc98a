"""Counters of steps and tokens on the device, per row since its admission.

R rows, B = R, N nodes, D largest draft depth.
"""

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from paceline.core.columns import Columns
from paceline.core.host import integers
from paceline.core.ops import Ops, TensorOps
from paceline.core.tree import Outcome, Tree


@final
class Stats:
    """Adds up outcomes after clipping; reading it is a transfer to the host."""

    def __init__(self, rows: int, max_depth: int, device: torch.device, ops: Ops | None = None) -> None:
        self._ops = ops or TensorOps()
        self.steps = torch.zeros(rows, dtype=torch.int64, device=device)
        self.emitted = torch.zeros(rows, dtype=torch.int64, device=device)
        self.drafted = torch.zeros(rows, max_depth, dtype=torch.int64, device=device)  # by depth - 1
        self.accepted = torch.zeros(rows, max_depth, dtype=torch.int64, device=device)
        self.columns = Columns(self.steps, self.emitted, self.drafted, self.accepted)

    def reset(self, rows: Tensor) -> None:
        """Reset ``rows`` [B] for new requests."""
        for counter in (self.steps, self.emitted, self.drafted, self.accepted):
            counter.index_fill_(0, rows, 0)

    def record(self, tree: Tree, outcome: Outcome) -> None:
        """Count one step of every row; inactive rows have num_committed 0 and no valid node."""
        self._ops.record(self.columns, tree, outcome)

    @property
    def width(self) -> int:
        """Columns of ``table``."""
        return 2 + 2 * self.drafted.shape[1]

    def table(self) -> Tensor:
        """All counters [R, 2 + 2 D], a row each: see Summary.of."""
        return torch.cat((self.steps[:, None], self.emitted[:, None], self.drafted, self.accepted), dim=1)

    def summary(self, rows: list[int] | None = None) -> "Summary":
        """Totals over ``rows`` (all by default); transfers to the host."""
        chosen = slice(None) if rows is None else torch.tensor(rows, device=self.steps.device)
        return Summary(
            steps=int(self.steps[chosen].sum()),
            emitted=int(self.emitted[chosen].sum()),
            drafted=integers(self.drafted[chosen].sum(0)),
            accepted=integers(self.accepted[chosen].sum(0)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStats:
    """Counters of a drafter that drafts for another one, whose forwards are the steps: see Drafter.stages."""

    name: str  # of what it drafts with
    stats: Stats
    drafts_for_target: bool = False  # a part of a chain that the target verifies; its steps are the target's

    def summary(self, rows: list[int] | None = None) -> "StageSummary":
        """As Stats.summary."""
        return self.of(self.stats.summary(rows))

    def of(self, summary: "Summary") -> "StageSummary":
        """``summary`` as one of this stage."""
        return StageSummary(name=self.name, summary=summary, drafts_for_target=self.drafts_for_target)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSummary:
    """What StageStats counted, on the host."""

    name: str
    summary: "Summary"
    drafts_for_target: bool

    def __add__(self, other: "StageSummary") -> "StageSummary":
        return replace(self, summary=self.summary + other.summary)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Counts on the host, and their ratios."""

    steps: int  # target forwards that a row took part in
    emitted: int  # tokens
    drafted: list[int]  # steps that proposed a token at depth i + 1
    accepted: list[int]  # steps that kept it

    @staticmethod
    def empty(max_depth: int) -> "Summary":
        """Of nothing."""
        return Summary(steps=0, emitted=0, drafted=[0] * max_depth, accepted=[0] * max_depth)

    @staticmethod
    def of(counters: list[int]) -> "Summary":
        """Of one row of ``Stats.table``."""
        steps, emitted, *depths = counters
        half = len(depths) // 2
        return Summary(steps=steps, emitted=emitted, drafted=depths[:half], accepted=depths[half:])

    def trimmed(self, *, num: int, num_accepted: int, kept: int) -> "Summary":
        """As if the last step, of ``num`` tokens and ``num_accepted`` of them drafted, had given only ``kept``."""
        lost = range(min(kept, num_accepted), num_accepted)
        accepted = [count - (depth in lost) for depth, count in enumerate(self.accepted)]
        return replace(self, emitted=self.emitted - (num - kept), accepted=accepted)

    def __add__(self, other: "Summary") -> "Summary":
        return Summary(
            steps=self.steps + other.steps,
            emitted=self.emitted + other.emitted,
            drafted=[a + b for a, b in zip(self.drafted, other.drafted, strict=True)],
            accepted=[a + b for a, b in zip(self.accepted, other.accepted, strict=True)],
        )

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens emitted per step: accepted ones and the correction or bonus, after clipping."""
        return self.emitted / self.steps if self.steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens."""
        return sum(self.accepted) / sum(self.drafted) if sum(self.drafted) else 0.0

    @property
    def per_position_acceptance(self) -> list[float]:
        """Accepted over drafted tokens, by depth; 0 at a depth that was never drafted."""
        pairs = zip(self.accepted, self.drafted, strict=True)
        return [accepted / drafted if drafted else 0.0 for accepted, drafted in pairs]

    @property
    def first_acceptance(self) -> float:
        """Share of the steps with a draft whose first token was kept."""
        return self.accepted[0] / self.drafted[0] if self.drafted and self.drafted[0] else 0.0
