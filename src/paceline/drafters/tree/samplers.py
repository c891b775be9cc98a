"""How the children of some nodes are drawn, one rule per ``Draw``. Knows nothing of models or topologies' making.

B rows, F parents that stand side by side, n children in all, w the most children of one parent, V vocabulary.
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
class Level:
    """The children to draw: static, the same for all rows."""

    parent: Tensor | None  # [n] which of the F parents; None: one child each
    place: Tensor | None  # [n] which of the F * w children that parents could have; None: all of them
    node: Tensor  # [n] index in the tree
    first: Tensor  # [F] index in the tree of each parent's first child
    width: int  # w

    def spread(self, ranked: Tensor) -> Tensor:
        """Of what every parent's w children would have [B, F, w], that of those there are [B, n]."""
        return take(ranked.flatten(1), self.place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Tokens, and how they came about."""

    tokens: Tensor  # [B, n]
    possible: Tensor | None = None  # [B, n] bool; false where no token was left to draw; None: there always was
    probs: Tensor | None = None  # [B, F, V] each parent's, where the draw has one
    chosen: Tensor | None = None  # [B] bool: rows whose tokens are fixed choices all the same


Rule: TypeAlias = Callable[[Batch, Tensor, Tensor, Level], Drawn]
"""(batch, processed logits [B, F, V], position [B, 1] of the children, level) -> Drawn."""


def fixed(batch: Batch, logits: Tensor, position: Tensor, level: Level) -> Drawn:
    """The likeliest tokens."""
    if level.width == 1:  # every distribution has a first token
        return Drawn(tokens=level.spread(batch.argmax(logits)[..., None]))
    return _drawn(logits, top_tokens(logits, level.width), level)


def shared(batch: Batch, logits: Tensor, position: Tensor, level: Level) -> Drawn:
    """The first finishers of the very race in which the target picks; where it is greedy, the likeliest tokens."""
    if not batch.sampling.any_sampled:
        return fixed(batch, logits, position, level)
    if level.width == 1:
        return Drawn(tokens=level.spread(batch.pick(logits, position)[..., None]))
    scores = batch.scores(logits)
    order = batch.noise.order(scores, batch.key(position, Stream.TARGET), level.width)
    return _or_likeliest(batch, logits, scores, order, level)[0]


def no_replacement(batch: Batch, logits: Tensor, position: Tensor, level: Level) -> Drawn:
    """The first finishers of a race of each parent's own; where the target is greedy, the likeliest tokens.

    A greedy distribution leaves nothing for a second child to be drawn from, so there tokens are fixed choices.
    """
    scores = batch.scores(logits)
    order = batch.noise.order(scores, batch.key(position, Stream.DRAFT, lane=level.first), level.width)
    drawn, greedy = _or_likeliest(batch, logits, scores, order, level)
    return Drawn(tokens=drawn.tokens, possible=drawn.possible, probs=scores.softmax(-1), chosen=greedy)


def iid(batch: Batch, logits: Tensor, position: Tensor, level: Level) -> Drawn:
    """Each from its parent's distribution, with noise of its own: siblings may be the same."""
    scores = batch.scores(logits)
    key = batch.key(position, Stream.DRAFT, lane=level.node)
    tokens = batch.noise.choose(take(scores, level.parent), key)
    return Drawn(tokens=tokens, probs=scores.softmax(-1))


RULES: dict[Draw, Rule] = {Draw.FIXED: fixed, Draw.SHARED: shared, Draw.IID: iid, Draw.NO_REPLACEMENT: no_replacement}
WITH_PROBS = frozenset({Draw.IID, Draw.NO_REPLACEMENT})  # draws whose distributions are kept


def take(values: Tensor, index: Tensor | None) -> Tensor:
    """Of ``values`` [B, m, ...] those of ``index`` [n]; None takes all."""
    return values if index is None else values.index_select(1, index)


def top_tokens(logits: Tensor, count: int) -> Tensor:
    """Tokens [..., count] of the largest ``logits`` [..., V], in order."""
    return logits.argmax(-1, keepdim=True) if count == 1 else logits.topk(count, dim=-1).indices


def _drawn(scores: Tensor, order: Tensor, level: Level) -> Drawn:
    if level.width == 1:  # every distribution has a first token
        return Drawn(tokens=level.spread(order))
    possible = level.spread(scores.gather(-1, order) > -torch.inf)
    # Ids beyond the draft's vocabulary may stand where no token is left.
    return Drawn(tokens=torch.where(possible, level.spread(order), 0), possible=possible)


def _or_likeliest(
    batch: Batch, logits: Tensor, scores: Tensor, order: Tensor, level: Level
) -> tuple[Drawn, Tensor | None]:
    """Rows that sample take their first of ``order`` [B, F, w], greedy ones their likeliest; which those are [B]."""
    if not batch.sampling.any_greedy:
        return _drawn(scores, order, level), None
    greedy = batch.sampling.temperature == 0
    rows = greedy[:, None, None]
    order = torch.where(rows, top_tokens(logits, level.width), order)
    return _drawn(torch.where(rows, logits, scores), order, level), greedy
