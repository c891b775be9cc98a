"""The target's last hidden states before the root of every row, for drafters that read them.

R rows, B admitted rows, s states, N nodes, D depth, H hidden size.
"""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from paceline.core.admission import Admission
from paceline.core.ops import TensorOps
from paceline.core.tree import Outcome, Tree
from paceline.drafters.base import DrafterContext


@final
class LastHiddenStates:
    """The last ``count`` states of every row at one ``tap``; zeros before the beginning of a sequence.

    For a sequence with a shared prefix, the target must read the last ``count`` tokens again (Drafter.num_reread).
    """

    def __init__(self, context: DrafterContext, *, tap: int, count: int, hidden_size: int) -> None:
        self.tap, self.ops = tap, context.ops or TensorOps()
        shape = context.rows, count, hidden_size
        self.states = torch.zeros(shape, dtype=context.cache.dtype, device=context.device)  # [R, s, H]
        self.index = torch.arange(count, device=context.device)

    def admit(self, admission: Admission, hidden: Mapping[int, Tensor]) -> None:
        """Set the states before the roots of the admitted rows from ``hidden`` of Drafter.prefill."""
        rows, count, size = len(admission.rows), *self.states.shape[1:]
        fresh = self.states.new_zeros(rows, count, size)
        if self.tap in hidden:  # else no row had anything to read
            read = hidden[self.tap]
            at = (admission.known - admission.prefix_length)[:, None] - count + self.index  # [B, s]
            found = read.gather(1, at.clamp(min=0)[..., None].expand(-1, -1, size))
            fresh = torch.where((at >= 0)[..., None], found, fresh)
        self.states.index_copy_(0, admission.rows, fresh)

    def update(self, tree: Tree, outcome: Outcome, hidden: dict[int, Tensor]) -> None:
        """Append the states of the root and of each row's accepted path."""
        path = None if tree.chain else outcome.path
        self.ops.keep_last(hidden[self.tap], path, outcome.num_committed, self.states)

    def append(self, states: Tensor, count: Tensor) -> None:
        """Append the first ``count`` [R] of ``states`` [R, n, H]."""
        self.ops.keep_last(states, None, count, self.states)
