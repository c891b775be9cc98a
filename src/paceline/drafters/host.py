"""Drafters that work on the host, with sequences as lists: string matching, suffix stores, retrieval.

R rows, D draft depth.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.step import StepPlan
from paceline.core.tree import Draw, NoDraft, Outcome, Tree
from paceline.drafters.base import Drafter, DrafterContext


class HostDrafter(ABC):
    """Proposes chains of fixed tokens from the host's copy of every sequence. The engine's runner asks it."""

    origins: tuple[str, ...] = ("draft",)  # as Drafter.origins

    @abstractmethod
    def propose(self, sequences: Mapping[int, Sequence[int]], num_draft_tokens: int) -> Mapping[int, Sequence[int]]:
        """At most ``num_draft_tokens`` tokens to follow each of ``sequences``, by row; rows may be left out.

        A sequence holds the prompt and every token since, the root last. It is not to be changed or kept.
        """


@final
class HostDrafting(Drafter):
    """A host drafter as the step sees it: chains from buffers that are filled before the step.

    Steps under it are recorded as those of any other drafter; only filling the buffers waits for former results.
    """

    draws = frozenset({Draw.FIXED})
    accepts_other_tokens = True
    on_host = True

    def __init__(self, drafter: HostDrafter) -> None:
        self.drafter, self.origins = drafter, drafter.origins

    @property
    def host_state(self) -> Hashable:
        return ()

    def start(self, context: DrafterContext) -> None:
        """Allocate the buffers."""
        shape = (context.rows, context.max_draft_tokens)
        self.vocab_size = context.vocab_size
        self.tokens = torch.zeros(shape, dtype=torch.int64, device=context.device)  # [R, D]
        self.count = torch.zeros(context.rows, dtype=torch.int64, device=context.device)  # [R]

    def fill(self, sequences: Mapping[int, Sequence[int]], plan: StepPlan) -> None:
        """Ask for drafts of the rows in ``sequences`` and put them into the buffers.

        Raises ValueError for a token outside the target's vocabulary.
        """
        rows, depth = self.tokens.shape
        tokens, count = torch.zeros(rows, depth, dtype=torch.int64), torch.zeros(rows, dtype=torch.int64)
        for row, draft in self.drafter.propose(sequences, plan.num_draft_tokens).items():
            kept = list(draft)[: plan.num_draft_tokens]
            if kept and not 0 <= min(kept) <= max(kept) < self.vocab_size:
                raise ValueError(f"draft tokens {kept} leave the target's vocabulary of {self.vocab_size}")
            tokens[row, : len(kept)] = torch.tensor(kept, dtype=torch.int64)
            count[row] = len(kept)
        self.tokens.copy_(tokens)
        self.count.copy_(count)

    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Nothing is drafted for the admitted rows until the buffers are filled again."""
        self.count.index_fill_(0, admission.rows, 0)

    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """The chains of the buffers [R, k + 1]; rows without a draft have the root alone."""
        depth = plan.num_draft_tokens
        index = torch.arange(depth, device=batch.device)
        room = torch.minimum(self.count, batch.draft_room)[:, None]
        valid = torch.cat((batch.active[:, None], (index < room) & batch.active[:, None]), dim=1)
        tokens = torch.cat((batch.root[:, None], self.tokens[:, :depth]), dim=1)
        return batch.chain(tokens, valid, no_draft_reason=NoDraft.NO_MATCH)

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, hidden: dict[int, Tensor]) -> None:
        """The buffers are of former sequences now."""
        self.count.zero_()
