"""The target's last-layer states of every token, which an early-exit head with ``recycle`` reads beside its own input.

R rows, B rows of a call, n states, D depth, H hidden size.
"""

from typing import final

import torch
from torch import Tensor

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.draft_heads.recycle import Recycle


@final
class RecycledStates:
    """A state per token of every sequence, and what ``recycle`` makes of the state before a token."""

    def __init__(
        self,
        *,
        recycle: Recycle,
        rows: int,
        max_length: int,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.recycle = recycle
        # The last column takes the writes that are discarded.
        self.states = torch.zeros(rows, max_length + 1, hidden_size, dtype=dtype, device=device)  # [R, T + 1, H]

    def copy_prefixes(self, admission: Admission) -> None:
        """Copy the states of shared prefixes from their source rows."""
        if admission.moves:
            longest = min(admission.max_prefix_length, self.states.shape[1])
            self.states[admission.rows, :longest] = self.states[admission.source, :longest]

    def add_prompts(self, admission: Admission, last: Tensor) -> Tensor:
        """Keep the ``last`` layer's states [B, n, H] of prompts after their prefixes; what each token reads of them."""
        num = admission.known - admission.prefix_length
        return self._add(admission.rows, admission.prefix_length, num, last)

    def add_step(self, root: Tensor, num: Tensor, last: Tensor) -> Tensor:
        """Keep ``num`` [R] of the ``last`` layer's states [R, 1 + D, H] from position ``root`` on; as above."""
        return self._add(torch.arange(len(root), device=root.device), root, num, last)

    def by_depth(self, batch: Batch, depth: int) -> Tensor:
        """What tokens of every depth of a draft read [R, 1 + D, H] of the last verified token's state."""
        last = (batch.length - 2).clamp(min=0)[:, None, None]
        age = torch.arange(depth + 1, device=batch.device).expand(batch.rows, -1)
        known = (batch.length > 1)[:, None].expand_as(age)
        return self.recycle(self.states.gather(1, last.expand(-1, -1, self.states.shape[-1])), age, known)

    def _add(self, rows: Tensor, start: Tensor, num: Tensor, last: Tensor) -> Tensor:
        """Keep the first ``num`` of ``last`` [B, n, H] for ``rows`` from ``start`` on; what their tokens read."""
        index = torch.arange(last.shape[1], device=last.device)
        at = start[:, None] + index
        into = torch.where(index < num[:, None], at, self.states.shape[1] - 1)
        self.states.index_put_((rows[:, None].expand_as(into), into), last)
        before = self.states[rows[:, None], (at - 1).clamp(0, self.states.shape[1] - 1)]
        return self.recycle(before, torch.zeros_like(at), at > 0)
