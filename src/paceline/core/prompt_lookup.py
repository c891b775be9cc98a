"""Prompt lookup by tensor operations: the tokens that followed an earlier occurrence of a sequence's last tokens.

R rows, T sequence capacity, k draft tokens.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from paceline.core.batch_state import BatchState


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NgramOptions:
    """Which tokens prompt lookup copies.

    Of the matches of the last ``max_ngram`` down to ``min_ngram`` >= 1 tokens it takes the longest, and of equally long
    ones the latest, or the ``first``. A copy that reaches the end of the sequence goes on with its own beginning
    (``wrap``), or ends there. ``crop`` ends a draft before the first of its row's stop tokens.
    """

    max_ngram: int = 3
    min_ngram: int = 1
    first: bool = False
    wrap: bool = True
    crop: bool = False


def ngram_chain(batch: BatchState, depth: int, options: NgramOptions) -> tuple[Tensor, Tensor]:
    """See Batch.ngram_chain, of k = ``depth``; over all of the capacity, as nothing is known of lengths at the host."""
    device, tokens = batch.device, batch.tokens[:, : batch.max_length]
    column = torch.arange(batch.max_length, device=device)
    end = batch.length[:, None] - 1  # [R, 1] index of the root
    matched = torch.zeros_like(tokens)
    equal = torch.ones_like(tokens, dtype=torch.bool)
    for back in range(options.max_ngram):  # how many tokens up to each column equal the sequence's last ones
        last = tokens.gather(1, (end - back).clamp(min=0))
        shifted = torch.nn.functional.pad(tokens, (back, 0), value=-1)[:, : batch.max_length]
        equal = equal & (shifted == last) & (end >= back)
        matched = matched + equal
    matched = torch.where(column < end, matched, 0)
    preferred = column.flip(0) if options.first else column
    score = torch.where(matched >= options.min_ngram, matched * batch.max_length + preferred, -1)
    best, at = score.max(-1, keepdim=True)  # [R, 1]
    index = torch.arange(depth, device=device)
    period = (end - at).clamp(min=1)
    drafts = tokens.gather(1, (at + 1 + index % period).clamp(max=batch.max_length - 1))
    drafted = (best >= 0) & batch.active[:, None] & (index < batch.draft_room[:, None])
    if not options.wrap:
        drafted = drafted & (index < period)
    if options.crop:
        stops = (drafts[..., None] == batch.stop[:, None]).any(-1)
        drafted = drafted & (stops.cumsum(-1) == 0)
    chain = torch.cat((batch.root[:, None], torch.where(drafted, drafts, 0)), dim=1)
    return chain, torch.cat((batch.active[:, None], drafted), dim=1)
