"""Prompt lookup by tensor operations: the tokens that followed an earlier occurrence of a sequence's last tokens.

R rows, T sequence capacity, k draft tokens.
"""

import torch
from torch import Tensor

from paceline.core.batch_state import BatchState


def ngram_chain(batch: BatchState, depth: int, max_ngram: int, min_ngram: int) -> tuple[Tensor, Tensor]:
    """See Batch.ngram_chain, of k = ``depth``; over all of the capacity, as nothing is known of lengths at the host."""
    device, tokens = batch.device, batch.tokens[:, : batch.max_length]
    column = torch.arange(batch.max_length, device=device)
    end = batch.length[:, None] - 1  # [R, 1] index of the root
    matched = torch.zeros_like(tokens)
    equal = torch.ones_like(tokens, dtype=torch.bool)
    for back in range(max_ngram):  # how many tokens up to each column equal the sequence's last ones
        last = tokens.gather(1, (end - back).clamp(min=0))
        shifted = torch.nn.functional.pad(tokens, (back, 0), value=-1)[:, : batch.max_length]
        equal = equal & (shifted == last) & (end >= back)
        matched = matched + equal
    matched = torch.where(column < end, matched, 0)
    score = torch.where(matched >= min_ngram, matched * batch.max_length + column, -1)
    best, at = score.max(-1, keepdim=True)  # [R, 1]
    index = torch.arange(depth, device=device)
    period = (end - at).clamp(min=1)
    drafts = tokens.gather(1, (at + 1 + index % period).clamp(max=batch.max_length - 1))
    drafted = (best >= 0) & batch.active[:, None] & (index < batch.draft_room[:, None])
    chain = torch.cat((batch.root[:, None], torch.where(drafted, drafts, 0)), dim=1)
    return chain, torch.cat((batch.active[:, None], drafted), dim=1)
