"""The interface between drafters and the decoder.

B rows, N nodes.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import final

import torch
from torch import Tensor

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.cache import View
from paceline.core.context import Context
from paceline.core.guidance import GuidanceState
from paceline.core.host_draft import HostDraft
from paceline.core.noise import Noise
from paceline.core.ops import Ops
from paceline.core.stats import StageStats
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, NoDraft, Outcome, Tree
from paceline.models.base import LM


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterContext:
    """What the decoder gives a drafter before the first request."""

    rows: int
    max_length: int  # tokens of the longest sequence
    max_draft_tokens: int
    vocab_size: int  # the target's
    draw: Draw  # how tokens must be drawn, agreed with the verifier
    device: torch.device
    target: LM
    cache: View  # the target's own, of all rows and layers; slots above the committed ones are free while drafting
    wants: tuple[Draw, ...] = ()  # draws that the verifier takes, best first
    same_tokens: bool = True  # whether the verifier's tokens do not depend on drafts
    guidance: GuidanceState | None = None  # of the rows, where requests may be guided
    noise: Noise | None = None  # of the batch
    ops: Ops | None = None  # of the batch
    # The next stage of the batches that drafters make for others to draft in (core/noise.Key), each of its own.
    stages: "count[int]" = field(default_factory=lambda: count(1), compare=False)
    lag: int = 0  # tokens that a row may gain between two drafts, besides those of a draft and the one after it


class Drafter(ABC):
    """Proposes a tree per row and step. With a lossless verifier it affects speed, never the output distribution."""

    taps: tuple[int, ...] = ()  # the target's hidden states that it reads
    last_states: int | None = None  # of a prompt, it reads the taps of so many tokens before the root; None: of all
    num_reread: int = 0  # the last tokens before a prompt's root whose taps it needs, even in a shared prefix
    num_reread_of_prefix: int = 0  # the last tokens of a shared prefix whose taps it needs
    origins: tuple[str, ...] = ("draft",)  # names of the numbers in Tree.origin
    draws: frozenset[Draw]  # the ways in which it can draw tokens
    branches: bool = False  # whether its trees may branch
    postpones: bool = False  # whether ``postpone`` leaves prompts to be read with the first draft
    on_host: bool = False  # whether it drafts on the host before the step, from the results of all former ones
    copies: bool = False  # whether it copies text that is there, so that a long draft costs no more than a short one
    num_extra_rows: int = 0  # rows of the target's cache that it takes beside those of the target
    # Whether its drafts depend on more than the row's own request, such as the neighbours or what it decoded before.
    needs_same_tokens: bool = False
    ends_early: bool = False  # whether it ends chains by batch.early_stop
    num_unverified: int = 0  # nodes of Tree.unverified but its root, in every step in which it is asked
    num_search_nodes: int = 0  # tokens that it reads to try another way to draft, where ``plan.searches``; 0: none
    accepts_other_tokens: bool = (
        False  # whether ``observe`` may be given a chain with other tokens than those that it proposed
    )

    # Whether it may draft for some rows beside copies in others: see ``CandidateDrafters``. Its trees have no
    # ``resume`` and no ``unverified``, and ``observe`` takes any tree, where it has ``taps``.
    joins: bool = False

    parts: "tuple[Drafter, ...]" = ()  # drafters that it is made of
    nests: bool = False  # whether it may draft for another drafter: see ``rewind``

    def max_nodes(self, num_draft_tokens: int) -> int:
        """Nodes of the largest tree that it proposes at this depth, with the root and with those that are not verified.

        Those of a chain unless overridden.
        """
        return num_draft_tokens + 1 + (self.num_unverified if num_draft_tokens else 0)

    @abstractmethod
    def start(self, context: DrafterContext) -> None:
        """Allocate for ``context``, dropping former state. Raises ValueError for a target it cannot serve."""

    def check_context(self, context: Context) -> None:
        """Raise ValueError for a request's context that it cannot read, although the target can."""
        for part in self.parts:
            part.check_context(context)

    @property
    def slot_bytes(self) -> int:
        """Memory per row and token of capacity, in bytes; most drafters take none worth counting."""
        return 0

    @property
    def context_bytes(self) -> int:
        """Memory per row of what it keeps of requests' contexts, in bytes."""
        return sum(part.context_bytes for part in self.parts)

    @property
    def host_state(self) -> Hashable:
        """The part of its state that is on the host and that a step branches on, besides ``plan`` and ``batch.flags``.

        Equal states mean that ``propose`` and ``observe`` do the same operations on the same tensors, and update in
        place what they keep from step to step; such steps may be recorded and replayed. () means that there is no such
        state; None, the default, that it is not known, so that no step is replayed.
        """
        return None

    def offers(self, batch: Batch, num_draft_tokens: int) -> Mapping[int, Sequence[HostDraft]]:
        """What a drafter that ``copies`` has for each row, of which the plan may choose for the step."""
        return {}

    def begin_step(self, batch: Batch, plan: StepPlan) -> None:  # noqa: B027 - most drafters keep nothing on the host
        """Prepare ``host_state`` for a step of the shape ``plan``; the only call in a step of no draft, without taps.

        Called outside recordings, so it may use all of ``plan``, and must not touch the device unless ``host_state`` is
        None.
        """

    def stand_by(self, batch: Batch, num_tokens: int) -> None:  # noqa: B027 - as above
        """Prepare ``host_state`` for a step in which another drafter drafts: every row gains up to ``num_tokens``.

        ``propose`` is not called, and ``observe`` only with ``taps``. As ``begin_step`` otherwise.
        """

    def resume(self, host_state: Hashable) -> None:  # noqa: B027 - nothing to do without such a state
        """Set ``host_state`` to one that it had before: a step was replayed, or recorded without being executed."""

    def rewind(self, length: Tensor) -> None:
        """Forget what was read of each row's tokens from ``length`` [B] on: others will take their place.

        Called between steps, and only if ``nests``. Such a drafter reads neither ``taps`` nor the target's cache,
        draws with no noise but by the keys of the batch, and may be asked for several drafts after one ``begin_step``.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot draft for another drafter")

    @property
    def stages(self) -> tuple[StageStats, ...]:
        """Counters of drafters that it is made of, in the order of their tokens and of their verification."""
        return ()

    @abstractmethod
    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Process the prompts of the admitted rows, which are in ``batch``; the root is not read.

        A row that forks starts with the source's state of the prefix (sources must be read before anything is
        written); any other row starts empty. ``hidden`` holds the target's taps over the tokens that it read itself:
        entry [b, i] belongs to token i after the prefix.
        """

    def postpone(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """In place of ``prefill`` where no row is to draft at once: the prompts may be read with their first draft.

        Drafters whose ``postpones`` is false read them now.
        """
        self.prefill(batch, admission, hidden)

    def release(self, batch: Batch, rows: Sequence[int]) -> None:  # noqa: B027 - most drafters need not know
        """Take into account that the requests in ``rows`` have ended, where they are told to end."""

    @abstractmethod
    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """A tree rooted at each row's newest token, of a shape that depends on ``plan.num_draft_tokens`` alone.

        That is at least 1. ``batch.draft_room`` says how deep each row may be drafted for.
        """

    @abstractmethod
    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, hidden: dict[int, Tensor]) -> None:
        """Update the state with the outcome of ``tree``; ``batch`` is already extended."""

    def observe_unverified(self, tree: Tree, likeliest: Tensor) -> None:  # noqa: B027 - for few
        """Update the state with the ``likeliest`` token [B, U] after each node of ``tree.unverified`` but its root.

        Called before ``observe``, where the drafter's tree had such nodes. Constraints and logits processors do not
        apply to them, guidance does.
        """


class StatelessDrafter(Drafter):
    """A drafter that reads everything it needs from the batch, and nothing from the host."""

    accepts_other_tokens = True
    joins = True
    nests = True

    @property
    def host_state(self) -> Hashable:
        return ()

    @final
    def start(self, context: DrafterContext) -> None:
        """Allocates nothing."""

    @final
    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Reads nothing."""

    @final
    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, hidden: dict[int, Tensor]) -> None:
        """Keeps nothing."""

    @final
    def rewind(self, length: Tensor) -> None:
        """Has read nothing."""


def root_only(batch: Batch, reason: NoDraft = NoDraft.OFF) -> Tree:
    """The tree [B, 1] of a step without a draft."""
    return batch.chain(*batch.begin_chain(0), no_draft_reason=reason)
