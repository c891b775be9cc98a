"""What a drafter is to the step. Knows nothing of verifiers beyond the draw it was told to use.

B rows, N nodes.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.cache import View
from paceline.core.plan import StepPlan
from paceline.core.tree import Draw, Outcome, Tree
from paceline.models.base import LM, Output


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterContext:
    """What the decoder tells a drafter before the first row."""

    rows: int
    max_length: int  # longest text
    max_draft_tokens: int
    vocab_size: int  # the target's
    draw: Draw  # how tokens must be drawn, agreed with the verifier
    device: torch.device
    target: LM
    cache: View  # the target's, of all rows and layers; what lies above its committed slots is free while drafting


class Drafter(ABC):
    """Proposes a tree per row and step. Output never depends on it, only speed does."""

    taps: tuple[int, ...] = ()  # target hidden states it wants
    num_reread: int = 0  # the last tokens before a prompt's root whose taps it must see, also where others hold them
    origins: tuple[str, ...] = ("draft",)  # what the numbers of Tree.origin mean
    draws: frozenset[Draw]  # how it can draw
    branches: bool = False  # whether its trees may branch
    accepts_other_tokens: bool = (
        False  # whether ``observe`` may be given a chain whose tokens are not those that it proposed
    )

    def max_nodes(self, num_draft_tokens: int) -> int:
        """Nodes of the largest tree it proposes at this depth, root included; a chain unless overridden."""
        return num_draft_tokens + 1

    @abstractmethod
    def start(self, context: DrafterContext) -> None:
        """Allocate for ``context``, dropping former state. Raises ValueError for a target it cannot serve."""

    @property
    def slot_bytes(self) -> int:
        """Memory that it takes per row and token of capacity, in bytes; most drafters take none worth counting."""
        return 0

    @property
    def host_state(self) -> Hashable:
        """What of its state lies on the host: everything besides ``plan`` and ``batch.flags`` that a step branches on.

        Equal states mean that ``propose`` and ``observe`` do the same operations on the same tensors, changing in place
        what they keep from step to step; such steps may be recorded and replayed. () where there is none; None, unless
        overridden, where it is not known, so that every step is called anew.
        """
        return None

    def resume(self, host_state: Hashable) -> None:  # noqa: B027 - nothing to do for who has no such state
        """Take on ``host_state``, one that it has had: a step was replayed, or recorded without being done."""

    @abstractmethod
    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Take in the prompts of the admitted rows, which lie in ``batch``; the root is not read.

        A row that forks begins with what its source knows of the prefix (sources must be read before anything is
        written); any other begins with nothing. ``hidden`` holds the target's taps over the tokens that it read itself:
        entry [b, i] belongs to token i after the prefix.
        """

    @abstractmethod
    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """A tree rooted at each row's newest token, of a shape that depends on ``plan`` alone."""

    @abstractmethod
    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, output: Output) -> None:
        """Learn what became of ``tree``; ``batch`` is already extended."""


class StatelessDrafter(Drafter):
    """A drafter that reads everything it needs from the batch, and nothing from the host."""

    accepts_other_tokens = True

    @property
    def host_state(self) -> Hashable:
        return ()

    @final
    def start(self, context: DrafterContext) -> None:
        """Nothing to allocate."""

    @final
    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Nothing to take in."""

    @final
    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, output: Output) -> None:
        """Nothing to learn."""
