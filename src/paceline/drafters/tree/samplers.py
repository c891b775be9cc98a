"""How the children of the nodes of one depth are sampled: one sampler for each ``Draw``.

B rows, F parents of one depth, n children in all, w the most children of one parent, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from paceline.core.batch import Batch
from paceline.core.noise import Stream
from paceline.core.tree import Draw


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLevel:
    """The children at one depth: static, the same for all rows."""

    parent: Tensor | None  # [n] which of the F parents; None: each parent has one child
    rank: Tensor | None  # [n] which of the F * w children that parents could have; None: all of them
    node: Tensor  # [n] index in the tree
    first: Tensor  # [F] index in the tree of each parent's first child
    width: int  # w

    def select(self, ranked: Tensor) -> Tensor:
        """The values [B, n] of the children that exist, from values [B, F, w] by parent and rank."""
        return select_nodes(ranked.flatten(1), self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledChildren:
    """Tokens, and what verifiers must know of how they were sampled."""

    tokens: Tensor  # [B, n]
    possible: Tensor | None = None  # [B, n] bool; false where no token was left to draw; None: there always was
    probs: Tensor | None = None  # [B, F, V] the distribution at each parent, if tokens were drawn from one
    fixed_rows: Tensor | None = None  # [B] bool: rows whose tokens are fixed choices all the same


ChildSampler: TypeAlias = Callable[[Batch, Tensor, Tensor, TreeLevel], SampledChildren]
"""(batch, processed logits [B, F, V], position [B, 1] of the children, level) -> SampledChildren."""


def fixed(batch: Batch, logits: Tensor, position: Tensor, level: TreeLevel) -> SampledChildren:
    """The likeliest tokens."""
    if level.width == 1:  # every distribution has a first token
        return SampledChildren(tokens=level.select(batch.argmax(logits)[..., None]))
    return _ranked(logits, top_tokens(logits, level.width), level)


def shared(batch: Batch, logits: Tensor, position: Tensor, level: TreeLevel) -> SampledChildren:
    """Gumbel-top-k with the noise of the target's own pick; the likeliest tokens where the target is greedy."""
    if not batch.sampling.any_sampled:
        return fixed(batch, logits, position, level)
    if level.width == 1:
        return SampledChildren(tokens=level.select(batch.pick(logits, position)[..., None]))
    scores = batch.warp(logits)
    order = batch.noise.order(scores, batch.key(position, Stream.TARGET), level.width)
    return _sampled_or_greedy(batch, logits, scores, order, level)[0]


def no_replacement(batch: Batch, logits: Tensor, position: Tensor, level: TreeLevel) -> SampledChildren:
    """Gumbel-top-k with noise of each parent's own; the likeliest tokens where the target is greedy.

    A greedy distribution leaves nothing for a second child to be drawn from, so there tokens are fixed choices.
    """
    scores = batch.warp(logits)
    order = batch.noise.order(scores, batch.key(position, Stream.DRAFT, node=level.first), level.width)
    sampled, greedy = _sampled_or_greedy(batch, logits, scores, order, level)
    return SampledChildren(
        tokens=sampled.tokens, possible=sampled.possible, probs=scores.softmax(-1), fixed_rows=greedy
    )


def iid(batch: Batch, logits: Tensor, position: Tensor, level: TreeLevel) -> SampledChildren:
    """Each from its parent's distribution with noise of its own: siblings may be the same token."""
    scores = batch.warp(logits)
    key = batch.key(position, Stream.DRAFT, node=level.node)
    tokens = batch.noise.choose(select_nodes(scores, level.parent), key)
    return SampledChildren(tokens=tokens, probs=scores.softmax(-1))


SAMPLERS: dict[Draw, ChildSampler] = {
    Draw.FIXED: fixed,
    Draw.SHARED: shared,
    Draw.IID: iid,
    Draw.NO_REPLACEMENT: no_replacement,
}
DRAWS_WITH_PROBS = frozenset({Draw.IID, Draw.NO_REPLACEMENT})  # draws whose distributions verifiers read


def select_nodes(values: Tensor, index: Tensor | None) -> Tensor:
    """``values`` [B, m, ...] at ``index`` [n] of the second dimension; None selects all."""
    return values if index is None else values.index_select(1, index)


def top_tokens(logits: Tensor, count: int) -> Tensor:
    """Tokens [..., count] of the largest ``logits`` [..., V], in descending order."""
    return logits.argmax(-1, keepdim=True) if count == 1 else logits.topk(count, dim=-1).indices


def _ranked(scores: Tensor, order: Tensor, level: TreeLevel) -> SampledChildren:
    """The children whose tokens by rank are ``order`` [B, F, w]."""
    if level.width == 1:  # every distribution has a first token
        return SampledChildren(tokens=level.select(order))
    possible = level.select(scores.gather(-1, order) > -torch.inf)
    # Ids beyond the draft's vocabulary may occur where no token is left.
    return SampledChildren(tokens=torch.where(possible, level.select(order), 0), possible=possible)


def _sampled_or_greedy(
    batch: Batch, logits: Tensor, scores: Tensor, order: Tensor, level: TreeLevel
) -> tuple[SampledChildren, Tensor | None]:
    """The first of ``order`` [B, F, w] in rows that sample, the likeliest in greedy rows; which rows are greedy [B]."""
    if not batch.sampling.any_greedy:
        return _ranked(scores, order, level), None
    greedy = batch.sampling.temperature == 0
    rows = greedy[:, None, None]
    order = torch.where(rows, top_tokens(logits, level.width), order)
    return _ranked(torch.where(rows, logits, scores), order, level), greedy
