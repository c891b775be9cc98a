"""Hidden states of a target on their way into a draft: along what a step committed, and read by a model of their own.

Knows no drafter. B rows, n states, N nodes, D depth, H hidden size.
"""

from dataclasses import replace
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.core.cache import View
from paceline.core.tree import Outcome, Resume, Tree
from paceline.models.base import LM, Head, Output


def path_hidden(output: Output, tap: int, tree: Tree, outcome: Outcome) -> Tensor:
    """The states [B, 1 + D, H] at ``tap`` of the root and of the accepted path; what is behind its end means nothing.

    The first ``outcome.num_committed`` of them are of the tokens that came into the target's cache.
    """
    hidden = output.hidden[tap]
    if tree.chain:
        return hidden
    nodes = F.pad(outcome.path, (1, 0)).clamp(min=0)  # the root is node 0
    return hidden.gather(1, nodes[..., None].expand(-1, -1, hidden.shape[-1]))


def read_hidden(lm: LM, cache: View, hidden: Tensor, count: Tensor, *, head: Head = Head.NONE) -> Output:
    """Commit the first ``count`` [B] of ``hidden`` [B, n, H] to ``cache`` as what ``lm`` reads in place of embeddings.

    Returns the forward's Output; Head.LAST gives the logits after the last of them.
    """
    rows, size = hidden.shape[:2]
    valid = torch.arange(size, device=hidden.device) < count[:, None]
    tokens = torch.zeros(rows, size, dtype=torch.int64, device=hidden.device)  # nobody looks them up
    resume = Resume(layer=0, hidden=hidden, ready=valid, first=size)
    output = lm(Tree.make_chain(tokens, valid), cache, head=head, resume=resume)
    cache.commit(count)
    return output


def with_root(root: Tensor, valid: Tensor, forest: Tree) -> Tree:
    """``forest`` as what grows from ``root`` and ``valid`` [B], which become node 0; the others are numbered behind."""
    return replace(
        forest,
        tokens=torch.cat((root[:, None], forest.tokens), dim=1),
        parents=F.pad(forest.parents + 1, (1, 0), value=-1),
        depth=F.pad(forest.depth + 1, (1, 0)),
        ancestors=F.pad(F.pad(forest.ancestors, (0, 0, 1, 0)), (1, 0), value=True),
        valid=torch.cat((valid[:, None], forest.valid), dim=1),
        draw=F.pad(forest.draw, (1, 0)),
        source=F.pad(forest.source, (1, 0), value=-1),
        origin=F.pad(forest.origin, (1, 0)),
        max_depth=forest.max_depth + 1,
    )


@final
class PendingStates:
    """What a model has yet to read of each of R rows, in order: at most C states of size H."""

    def __init__(self, rows: int, capacity: int, size: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.capacity = capacity
        # The last column takes the writes that must change nothing.
        self.states = torch.zeros(rows, capacity + 1, size, dtype=dtype, device=device)  # [R, C + 1, H]
        self.count = torch.zeros(rows, dtype=torch.int64, device=device)  # [R]
        self.rows = torch.arange(rows, device=device)[:, None]

    def add(self, states: Tensor, first: Tensor, until: Tensor) -> None:
        """Of ``states`` [R, n, H] those from ``first`` [R] to ``until`` [R], less the latter; there must be room."""
        index = torch.arange(states.shape[1], device=states.device)
        at = self.count[:, None] + index - first[:, None]
        kept = (index >= first[:, None]) & (index < until[:, None])
        at = torch.where(kept, at, self.capacity)
        self.states.index_put_((self.rows, at), states)
        self.count.add_(until - first)

    def then(self, newest: Tensor, size: int) -> Tensor:
        """The unread ones, at most ``size`` (static), and behind them ``newest`` [R, 1, H]: [R, size + 1, H]."""
        index = torch.arange(size + 1, device=newest.device)
        return torch.where((index == self.count[:, None])[..., None], newest, self.states[:, : size + 1])
