"""Drafters that work on the host, with sequences as lists: string matching, suffix stores, retrieval.

R rows, D most drafted tokens.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, final

import torch
from torch import Tensor

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.host import entries
from paceline.core.host_draft import HostDraft
from paceline.core.request import Request
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, NoDraft, Outcome, Tree
from paceline.drafters.base import Drafter, DrafterContext

Proposal: TypeAlias = Sequence[int] | HostDraft
TOKENS = 3  # column of the buffers from which on tokens stand


class HostDrafter(ABC):
    """Proposes fixed tokens from the host's copy of every sequence, before the step."""

    origins: tuple[str, ...] = ("draft",)  # as Drafter.origins
    branches: bool = False  # whether drafts may have parents
    copies: bool = False  # as Drafter.copies

    @property
    def slot_bytes(self) -> int:
        """As Drafter.slot_bytes."""
        return 0

    def start(self, context: DrafterContext) -> None:  # noqa: B027 - most keep no state
        """Drop former state, for the rows of ``context``. Raises ValueError for a target it cannot serve."""

    def begin(self, row: int, request: Request) -> None:  # noqa: B027 - as above
        """Take into account that ``request`` begins in ``row``, in place of what was there."""

    def end(self, row: int, sequence: Sequence[int]) -> None:  # noqa: B027 - as above
        """Take into account that the request in ``row`` has ended, with ``sequence``, its prompt and its output."""

    @abstractmethod
    def propose(self, sequences: Mapping[int, Sequence[int]], num_draft_tokens: int) -> Mapping[int, Proposal]:
        """At most ``num_draft_tokens`` tokens to follow each of ``sequences``, by row; rows may be left out.

        A sequence holds the prompt and every token since, the root last. It is not to be changed or kept.
        """

    def offers(
        self, sequences: Mapping[int, Sequence[int]], num_draft_tokens: int
    ) -> Mapping[int, Sequence[HostDraft]]:
        """As ``propose``, with all drafts that a plan may choose from; asked in every step of drafters that copy."""
        found = self.propose(sequences, num_draft_tokens)
        return {row: (one if isinstance(one, HostDraft) else HostDraft(one),) for row, one in found.items()}


@final
class HostDrafting(Drafter):
    """A host drafter as the step sees it: drafts from buffers that are filled before the step.

    Steps under it are recorded as those of any other drafter; only filling the buffers waits for former results.
    """

    draws = frozenset({Draw.FIXED})
    accepts_other_tokens = True
    on_host = True

    def __init__(self, drafter: HostDrafter) -> None:
        self.drafter, self.origins, self.branches = drafter, drafter.origins, drafter.branches
        self.copies = drafter.copies
        self._several = len(drafter.origins) > 1
        self._began: set[int] = set()

    @property
    def host_state(self) -> Hashable:
        return ()

    @property
    def slot_bytes(self) -> int:
        return self.drafter.slot_bytes

    def start(self, context: DrafterContext) -> None:
        """Allocate the buffers. Raises what the drafter's own ``start`` raises."""
        most, device = context.max_draft_tokens, context.device
        self.vocab_size = context.vocab_size
        buffer = torch.zeros(context.rows, 4 + 2 * most, dtype=torch.int64, device=device)
        self.count, self.deepest, self.origin = buffer[:, 0], buffer[:, 1], buffer[:, 2]  # [R]
        self.tokens = buffer[:, TOKENS : TOKENS + 1 + most]  # [R, 1 + D], with room for the root
        self.parents = buffer[:, TOKENS + 1 + most :]  # [R, D]; the root's number is 0
        # What the host writes, all in one; steps under a host drafter follow each other, so it is read by then.
        self._buffer = buffer
        apart = device.type != "cpu"
        self._write_to(torch.zeros_like(buffer, device="cpu", pin_memory=device.type == "cuda") if apart else buffer)
        self._index, self._counts, self._roots = torch.arange(1 + most, device=device), buffer[:, :1], self.tokens[:, 0]
        self._began.clear()
        self.drafter.start(context)

    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Nothing is drafted for the admitted rows until the buffers are filled again."""
        self.count.index_fill_(0, admission.rows, 0)
        for row, request in zip(admission.row_numbers, admission.requests, strict=True):
            self.drafter.begin(row, request)
            self._began.add(row)

    def release(self, batch: Batch, rows: Sequence[int]) -> None:
        """Tell the drafter what the requests of ``rows`` have become."""
        ended = [row for row in rows if row in self._began]
        for row, sequence in batch.host_sequences(ended).items():
            self._began.discard(row)
            self.drafter.end(row, sequence)

    def offers(self, batch: Batch, num_draft_tokens: int) -> Mapping[int, Sequence[HostDraft]]:
        """What the drafter has for each row that may have a draft."""
        running = self._running(batch)
        return self.drafter.offers(running, num_draft_tokens) if running else {}

    def begin_step(self, batch: Batch, plan: StepPlan) -> None:
        """Fill the buffers with the drafts that the plan chose, or ask for drafts of the rows that may have one.

        Raises ValueError for a token outside the target's vocabulary, and for parents that make no tree.
        """
        if not plan.num_draft_tokens:
            return
        if plan.copies is not None:
            self._fill(batch, plan.copies, plan)
            return
        running = {row: tokens for row, tokens in self._running(batch).items() if plan.depth_of(row)}
        self._fill(batch, self.drafter.propose(running, plan.num_draft_tokens) if running else {}, plan)

    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """The drafts of the buffers [R, k + 1]; rows without one have the root alone."""
        nodes = 1 + plan.num_draft_tokens
        self._roots.copy_(batch.root)
        tokens, valid = self.tokens[:, :nodes], torch.le(self._index[:nodes], self._counts)
        valid.logical_and_(batch.active[:, None])
        if self.branches:
            parents = torch.nn.functional.pad(self.parents[:, : nodes - 1], (1, 0), value=-1)
            tree = Tree.make(tokens, parents, valid, max_depth=nodes - 1, no_draft_reason=NoDraft.NO_MATCH)
            tree.valid.logical_and_(tree.depth <= self.deepest[:, None])
        else:
            tree = batch.chain(tokens, valid, no_draft_reason=NoDraft.NO_MATCH)
        return replace(tree, origin=self.origin[:, None].expand_as(tokens)) if self._several else tree

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, hidden: dict[int, Tensor]) -> None:
        """The buffers are of former sequences now."""
        self.count.zero_()

    def _write_to(self, host: Tensor) -> None:
        """Fill ``host`` before steps, the buffer itself or one that is copied to it."""
        self._host, self._entries = host, entries(host)

    def _running(self, batch: Batch) -> dict[int, Sequence[int]]:
        """The sequences of the rows that may have a draft."""
        sequences = batch.host_sequences(self._began)
        return {row: tokens for row, tokens in sequences.items() if _room(batch, row, len(tokens)) > 0}

    def _fill(self, batch: Batch, drafts: Mapping[int, Proposal], plan: StepPlan) -> None:
        flat, (rows, width), most = self._entries, self._host.shape, self.tokens.shape[1]
        assert flat is not None, "buffers are not filled within a step, which may run on fake tensors"
        for row in range(rows):
            flat[row * width] = 0
        sequences = batch.host_sequences(drafts)
        for row, draft in drafts.items():
            tokens, above = (draft.tokens, draft.parents) if isinstance(draft, HostDraft) else (draft, None)
            deepest = min(plan.depth_of(row), _room(batch, row, len(sequences[row])))
            kept = list(tokens[: plan.num_draft_tokens if self.branches else max(0, deepest)])
            if not kept:
                continue
            if not 0 <= min(kept) <= max(kept) < self.vocab_size:
                raise ValueError(f"draft tokens {kept} leave the target's vocabulary of {self.vocab_size}")
            count, origin, first = len(kept), draft.origin if isinstance(draft, HostDraft) else 0, row * width
            flat[first : first + TOKENS + 1 + count] = array("q", (count, deepest, origin, 0, *kept))
            if not self.branches:
                continue
            if above is None:
                above = range(-1, count - 1)
            above = list(above[:count])
            if len(above) < count or any(not -1 <= parent < node for node, parent in enumerate(above)):
                raise ValueError(f"parents {above} of {count} draft tokens: give -1 or an earlier one's number")
            flat[first + TOKENS + most : first + TOKENS + most + count] = array("q", (1 + parent for parent in above))
        if self._host is not self._buffer:
            self._buffer.copy_(self._host, non_blocking=True)


def _room(batch: Batch, row: int, length: int) -> int:
    """How many draft tokens the request of ``row`` may have after ``length`` tokens, as Batch.room."""
    request = batch.requests[row]
    if request is None:
        return 0
    left, most = len(request.tokens) + request.max_tokens - 1 - length, request.num_draft_tokens
    return left if most is None else min(left, most)
