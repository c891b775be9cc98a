"""Admission: which rows are given to new requests, and what their caches copy.

Decided on the host, outside the step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor

from paceline.core.context import Context
from paceline.core.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """The first ``length`` tokens of ``row`` in the caches, for a request that begins with them."""

    row: int
    length: int


Prefixes: TypeAlias = Sequence[Prefix | None]  # of each request, None: it copies nothing


@final
class Admission:
    """Rows [B] assigned to ``requests`` whose prompts are in the batch; ``prefixes`` are copied, not prefilled.

    A row with an empty prefix starts with an empty cache; one that copies a prefix copies its source's context too.
    """

    def __init__(
        self,
        *,
        rows: Sequence[int],
        requests: Sequence[Request],
        prefixes: Sequence[Prefix],
        device: torch.device,
    ) -> None:
        self.requests, self.prefixes, self.row_numbers = list(requests), list(prefixes), list(rows)
        lengths = [len(request.tokens) for request in requests]
        self.rows = torch.tensor(self.row_numbers, device=device)
        self.source = torch.tensor([prefix.row for prefix in prefixes], device=device)  # [B] where prefixes lie
        self.prefix_length: Tensor = torch.tensor(
            [prefix.length for prefix in prefixes], device=device
        )  # [B] their lengths
        self.known = torch.tensor(lengths, device=device) - 1  # [B] tokens before the root
        # Bounds that the host knows, so that admission need not ask the device.
        self.max_prefix_length = max(prefix.length for prefix in prefixes)
        self.moves = any(prefix.length and prefix.row != row for prefix, row in zip(prefixes, rows, strict=True))
        unread = [n - 1 - prefix.length for n, prefix in zip(lengths, prefixes, strict=True)]
        self.unread, self.num_unread = max(unread), sum(unread)  # of a row, of all

    def without_prefixes(self) -> "Admission":
        """The same rows, which copy nothing."""
        prefixes = [Prefix(row=row, length=0) for row in self.row_numbers]
        return Admission(rows=self.row_numbers, requests=self.requests, prefixes=prefixes, device=self.rows.device)

    @property
    def new_contexts(self) -> list[tuple[int, Context]]:
        """Rows whose contexts must be read, with these: all that have one and copy no prefix."""
        admitted = zip(self.row_numbers, self.requests, self.prefixes, strict=True)
        return [
            (row, request.context)
            for row, request, prefix in admitted
            if request.context is not None and prefix.length == 0
        ]

    @property
    def rows_of_contexts(self) -> dict[Context, list[int]]:
        """The same, equal contexts once with all of their rows."""
        rows: dict[Context, list[int]] = {}
        for row, context in self.new_contexts:
            rows.setdefault(context, []).append(row)
        return rows
