"""Drafts with Hydra heads, which read the target's last hidden state and the drafted tokens (2402.05109).

R rows, B admitted rows, n states, D depth, H hidden size.
"""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.cache import View
from paceline.core.tree import Outcome, Tree
from paceline.draft_heads.hydra import HydraHead
from paceline.drafters.base import DrafterContext
from paceline.drafters.feature import FeatureDrafter
from paceline.drafters.hidden_states import path_hidden, read_hidden
from paceline.models.prefill import CHUNK


@final
class HydraDrafter(FeatureDrafter):
    """Predicts every depth from the target's last hidden state and the embeddings of the tokens drafted before it.

    In a tree every node reads its own path. A head with a prefix layer has a cache for it, which reads the state of
    every verified token as soon as that is known; what comes out is kept in place of the state. ``lm``, ``shape`` and
    ``draws`` are as in FeatureDrafter.
    """

    origins = ("hydra",)
    head: HydraHead

    @property
    def slot_bytes(self) -> int:
        prefix = self.head.prefix_lm
        return super().slot_bytes if prefix is None else prefix.slot_bytes

    def allocate(self, context: DrafterContext, *, max_expanded: int) -> None:
        """As without a prefix layer, and its cache."""
        super().allocate(context, max_expanded=max_expanded)
        prefix, self.read_states = self.head.prefix_lm, None
        if prefix is not None:
            capacity = context.max_length + context.max_draft_tokens + 1
            self.read_states = prefix.new_cache(context.rows, capacity).view()

    def prefill(self, batch: Batch, admission: Admission, hidden: Mapping[int, Tensor]) -> None:
        """Keep what there is before the roots."""
        prefix, tap = self.head.prefix_lm, self.taps[0]
        if prefix is None or self.read_states is None:
            return super().prefill(batch, admission, hidden)
        view, made = prefix.admit(self.read_states, admission), list[Tensor]()
        if tap in hidden:
            unread = admission.known - admission.prefix_length
            for start in range(0, hidden[tap].shape[1], CHUNK):
                chunk = hidden[tap][:, start : start + CHUNK]
                made.append(self._read(view, chunk, (unread - start).clamp(0, chunk.shape[1])))
        self.states.admit(admission, {tap: torch.cat(made, dim=1)} if made else {})

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, hidden: dict[int, Tensor]) -> None:
        """Keep what there is of the newest accepted token."""
        if self.read_states is None:
            return super().observe(batch, tree, outcome, hidden)
        made = self._read(self.read_states, path_hidden(hidden, self.taps[0], tree, outcome), outcome.num_committed)
        self.states.append(made, outcome.num_committed)

    def _read(self, view: View, states: Tensor, count: Tensor) -> Tensor:
        """What the prefix layer makes of the first ``count`` [B] of the target's ``states`` [B, n, H] that follow."""
        prefix = self.head.prefix_lm
        assert prefix is not None and self.head.prefix is not None
        output = read_hidden(prefix, view, self.head.read_states(states), count, taps=(1,))
        return self.head.prefix.norm(output.hidden[1])
