"""Recycling: the target's last-layer state at the last verified token as an additional input of a draft head.

B rows, n states, H hidden size.
"""

from typing import final

import torch
from torch import Tensor, nn


@final
class Recycle(nn.Module):
    """W norm(R) + a[age], where R is the target's residual stream before its final norm at a token verified before.

    The age of a state is how many tokens lie between its token and the one before the token that reads it: 0 for
    verified tokens, d for a token drafted at depth d; at most ``max_age`` counts. A new module adds nothing, for W and
    a are zero.
    """

    def __init__(
        self, size: int, max_age: int, norm: nn.Module, *, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        self.max_age = max_age
        self.norm = norm
        self.weight = nn.Parameter(torch.zeros(size, size, dtype=dtype, device=device))
        self.ages = nn.Parameter(torch.zeros(max_age + 1, size, dtype=dtype, device=device))

    def forward(self, last: Tensor, age: Tensor, known: Tensor) -> Tensor:
        """What is added [B, n, H] for R ``last`` [B, n, H] or [B, 1, H] of ``age`` [B, n]; 0 where none is ``known``.

        ``known`` is bool [B, n]: false for the first token of a sequence.
        """
        carried = nn.functional.linear(self.norm(last.flatten(0, 1)), self.weight).view(last.shape)
        added = carried + self.ages[age.clamp(max=self.max_age)]
        return torch.where(known[..., None], added, 0.0)
