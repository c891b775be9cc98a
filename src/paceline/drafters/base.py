"""What a drafter is to the step. Knows nothing of verifiers beyond the draw it was told to use.

B rows, N nodes.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.plan import StepPlan
from paceline.core.tree import Draw, Outcome, Tree
from paceline.models.base import Output


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the decoder tells a drafter before the first row."""

    rows: int
    max_length: int  # longest text
    max_draft_tokens: int
    vocab_size: int  # the target's
    draw: Draw  # how tokens must be drawn, agreed with the verifier
    device: torch.device


class Drafter(ABC):
    """Proposes a tree per row and step. Output never depends on it, only speed does."""

    taps: tuple[int, ...] = ()  # target hidden states it wants
    draws: frozenset[Draw]  # how it can draw
    branches: bool = False  # whether its trees may branch

    def max_nodes(self, num_draft_tokens: int) -> int:
        """Nodes of the largest tree it proposes at this depth, root included; a chain unless overridden."""
        return num_draft_tokens + 1

    @abstractmethod
    def start(self, setting: Setting) -> None:
        """Allocate for ``setting``, dropping former state. Raises ValueError for a target it cannot serve."""

    @abstractmethod
    def prefill(self, batch: Batch, rows: Tensor, longest: int, hidden: dict[int, Tensor]) -> None:
        """Take in the prompts of ``rows`` [B], at most ``longest`` tokens, and the target's taps over them."""

    @abstractmethod
    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """A tree rooted at each row's newest token, of a shape that depends on ``plan`` alone."""

    @abstractmethod
    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, output: Output) -> None:
        """Learn what became of ``tree``; ``batch`` is already extended."""


class StatelessDrafter(Drafter):
    """A drafter that reads everything it needs from the batch."""

    @final
    def start(self, setting: Setting) -> None:
        """Nothing to allocate."""

    @final
    def prefill(self, batch: Batch, rows: Tensor, longest: int, hidden: dict[int, Tensor]) -> None:
        """Nothing to take in."""

    @final
    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, output: Output) -> None:
        """Nothing to learn."""
