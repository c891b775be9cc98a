"""Admission: which rows are given to new requests, and what their caches copy.

Decided on the host, outside the step.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """The first ``length`` tokens of ``row`` in the caches, for a request that begins with them."""

    row: int
    length: int


@final
class Admission:
    """Rows [B] assigned to requests whose prompts are in the batch; ``prefixes`` are copied instead of prefilled.

    ``lengths`` are those of the prompts. A row with an empty prefix starts with an empty cache.
    """

    def __init__(self, *, rows: list[int], prefixes: list[Prefix], lengths: list[int], device: torch.device) -> None:
        self.rows = torch.tensor(rows, device=device)
        self.source = torch.tensor([prefix.row for prefix in prefixes], device=device)  # [B] where prefixes lie
        self.prefix_length: Tensor = torch.tensor(
            [prefix.length for prefix in prefixes], device=device
        )  # [B] their lengths
        self.known = torch.tensor(lengths, device=device) - 1  # [B] tokens before the root
        # Bounds that the host knows, so that admission need not ask the device.
        self.max_prefix_length = max(prefix.length for prefix in prefixes)
        self.moves = any(prefix.length and prefix.row != row for prefix, row in zip(prefixes, rows, strict=True))
        self.unread = max(n - 1 - prefix.length for n, prefix in zip(lengths, prefixes, strict=True))
