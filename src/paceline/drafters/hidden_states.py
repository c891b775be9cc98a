"""Hidden states of the target as inputs of a draft head: collected along the accepted path, queued, and read.

B rows, n states, N nodes, D depth, H hidden size.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.core.cache import View
from paceline.core.ops import TensorOps
from paceline.core.tree import Outcome, Resume, Tree, along_path
from paceline.drafters.base import DrafterContext
from paceline.models.base import LM, LogitsFor, Output

FEW = 16  # entries of which all are made: to look for those that are valid takes longer


def check_head_target(context: DrafterContext, *, num_layers: int, vocab_size: int) -> None:
    """Raise ValueError for a target of other sizes than that which a head was made for."""
    target = context.target
    if (target.num_layers, context.vocab_size) != (num_layers, vocab_size):
        raise ValueError(
            f"this head was made for a target of {num_layers} layers and {vocab_size} tokens, and the target has "
            f"{target.num_layers} layers and {context.vocab_size} tokens: give a head that was trained for it"
        )


def path_hidden(hidden: dict[int, Tensor], tap: int, tree: Tree, outcome: Outcome) -> Tensor:
    """The states [B, 1 + D, H] at ``tap`` of the root and of the accepted path; undefined after the path's end.

    The first ``outcome.num_committed`` of them belong to the tokens that the target's cache committed.
    """
    states = hidden[tap]
    return states if tree.chain else along_path(states, outcome.path)


def made_of_valid(make: Callable[..., Sequence[Tensor]], valid: Tensor, *given: Tensor) -> list[Tensor]:
    """What ``make`` gives for the entries [1, m, ...] of ``given`` [B, n, ...] where ``valid`` [B, n].

    Elsewhere there is anything. The number of valid ones is looked up on the host, for heads that run by the kernels of
    the CPU, but not where all are few.
    """
    if valid.numel() <= FEW:
        return list(make(*given))
    found: list[Tensor] = []
    for made in make(*(one[valid][None] for one in given)):
        found.append(made.new_zeros(*valid.shape, *made.shape[2:]))
        found[-1][valid] = made[0]
    return found


def read_hidden(
    lm: LM,
    cache: View,
    hidden: Tensor,
    count: Tensor,
    *,
    taps: Sequence[int] = (),
    logits_for: LogitsFor = LogitsFor.NONE,
) -> Output:
    """Read the first ``count`` [B] of ``hidden`` [B, n, H] with ``lm`` in place of embeddings, and commit them.

    Returns the forward's Output, with ``taps``; LogitsFor.LAST gives the logits after the last of them.
    """
    rows, size = hidden.shape[:2]
    valid = torch.arange(size, device=hidden.device) < count[:, None]
    tokens = torch.zeros(rows, size, dtype=torch.int64, device=hidden.device)  # not embedded
    resume = Resume(layer=0, hidden=hidden, ready=valid, first=size)
    output = lm(Tree.make_chain(tokens, valid), cache, taps=taps, logits_for=logits_for, resume=resume)
    cache.commit(count)
    return output


def with_root(root: Tensor, valid: Tensor, forest: Tree) -> Tree:
    """``forest`` with ``root`` and ``valid`` [B] as node 0 before it; the numbers of the other nodes shift by one."""
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
    """A queue of at most C states of size H that a draft head has yet to read, for each of R rows."""

    def __init__(self, context: DrafterContext, capacity: int, size: int, *, dtype: torch.dtype) -> None:
        rows, device = context.rows, context.device
        self.capacity, self.ops = capacity, context.ops or TensorOps()
        # The last column takes the writes that are discarded.
        self.states = torch.zeros(rows, capacity + 1, size, dtype=dtype, device=device)  # [R, C + 1, H]
        self.count = torch.zeros(rows, dtype=torch.int64, device=device)  # [R]

    def append(
        self, states: Sequence[Tensor], until: Tensor, *, first: Tensor | None = None, path: Tensor | None = None
    ) -> None:
        """Append ``states``, see Ops.queue_states."""
        self.ops.queue_states(states, path, first, until, self.states, self.count)

    def followed_by(self, newest: Tensor, size: int) -> Tensor:
        """The pending states, at most ``size`` (static), and after them ``newest`` [R, 1, H]: [R, size + 1, H]."""
        index = torch.arange(size + 1, device=newest.device)
        return torch.where((index == self.count[:, None])[..., None], newest, self.states[:, : size + 1])
