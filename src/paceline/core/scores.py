"""The target's scores of a draft tree, which verifiers read.

R rows, r rows with a token mask, N nodes, V vocabulary, H hidden size.
"""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMask:
    """The tokens that constraints allow after every node, for the rows that have any."""

    rows: Tensor  # [r] int64
    allowed: Tensor  # [r, N, V] bool
    starved: Tensor  # [r, N] bool, valid nodes after which no token is left: a row that takes one has failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Logits of every node of a tree after guidance, logits processors and token masks, and tapped hidden states."""

    logits: Tensor  # [R, N, V]
    raw_logits: Tensor  # [R, N, V] as the LM head gives them
    hidden: dict[int, Tensor] = field(default_factory=dict[int, Tensor])  # tap -> [R, N, H]
    mask: TokenMask | None = None
    unverified: Tensor | None = None  # [R, U] the likeliest token after each node of Tree.unverified but its root

    @staticmethod
    def of(logits: Tensor) -> "Scores":
        """Scores of unprocessed ``logits`` [R, N, V]."""
        return Scores(logits=logits, raw_logits=logits, hidden={})
