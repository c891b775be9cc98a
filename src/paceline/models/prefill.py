"""Prefill: reads known tokens into the cache in chunks.

B rows, T known tokens, C chunk, H hidden size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.core.cache import View
from paceline.core.tree import Tree
from paceline.models.base import LM, LogitsFor, Output

CHUNK = 256


def feed(
    lm: LM,
    cache: View,
    tokens: Tensor,
    count: Tensor,
    size: int,
    *,
    taps: Sequence[int] = (),
    logits_for: LogitsFor = LogitsFor.NONE,
) -> Output:
    """Commit the next ``count`` [B] known tokens, at most ``size`` (static), from ``tokens`` [B, T].

    The token of slot s is tokens[b, s]. Returns the forward's Output; LogitsFor.LAST gives the last token's logits.
    """
    index = torch.arange(size, device=tokens.device)
    at = (cache.length[:, None] + index).clamp(max=tokens.shape[1] - 1)
    valid = index < count[:, None]
    output = lm(Tree.make_chain(tokens.gather(1, at), valid), cache, taps=taps, logits_for=logits_for)
    cache.commit(count.clamp(0, size))
    return output


def prefill(
    lm: LM, cache: View, tokens: Tensor, length: Tensor, longest: int, taps: Sequence[int]
) -> dict[int, Tensor]:
    """Commit ``tokens`` [B, T] from where each row of ``cache`` ends up to ``length`` [B]; the taps over what was read.

    ``longest`` (static) bounds how many tokens any row has yet to read; entry [b, i] of a tap belongs to the i-th of
    them.
    """
    hidden: dict[int, list[Tensor]] = {tap: [] for tap in taps}
    for start in range(0, longest, CHUNK):
        size = min(CHUNK, longest - start)
        output = feed(lm, cache, tokens, (length - cache.length).clamp(0, size), size, taps=taps)
        for tap in taps:
            hidden[tap].append(output.hidden[tap])
    return {tap: torch.cat(pieces, dim=1) for tap, pieces in hidden.items() if pieces}
