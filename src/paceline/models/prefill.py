"""Prefill: reads known tokens into the cache in chunks.

B rows, T known tokens, C chunk, H hidden size.
"""

from collections.abc import Callable, Sequence
from typing import final

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
    last_states: int | None = None,
) -> Output:
    """Commit the next ``count`` [B] known tokens, at most ``size`` (static), from ``tokens`` [B, T].

    The token of slot s is tokens[b, s]. Returns the forward's Output; LogitsFor.LAST gives the last token's logits, and
    ``last_states`` is as for the LM.
    """
    index = torch.arange(size, device=tokens.device)
    at = (cache.length[:, None] + index).clamp(max=tokens.shape[1] - 1)
    next_tokens = tokens.gather(1, at)
    return read_next(lm, cache, next_tokens, count, taps=taps, logits_for=logits_for, last_states=last_states)


def read_next(
    lm: LM,
    cache: View,
    tokens: Tensor,
    count: Tensor,
    *,
    taps: Sequence[int] = (),
    logits_for: LogitsFor = LogitsFor.NONE,
    last_states: int | None = None,
) -> Output:
    """Commit the first ``count`` [B] of ``tokens`` [B, n], which follow what is in the cache. Returns as ``feed``."""
    size = tokens.shape[1]
    valid = torch.arange(size, device=tokens.device) < count[:, None]
    output = lm(Tree.make_chain(tokens, valid), cache, taps=taps, logits_for=logits_for, last_states=last_states)
    cache.commit(count.clamp(0, size))
    return output


@final
class Prefill:
    """Prompts [B, T] being read in chunks, from where each row of ``cache`` ends up to ``length`` [B] less its root.

    ``longest`` (static) bounds how many tokens any row has yet to read. ``taps`` are kept over what is read; entry
    [b, i] belongs to the i-th token of row b that is read here. Of them the last ``last_states`` of every row are read
    (None: all); others may hold anything. ``on_logits`` (None: no logits are computed) is called
    with the logits [B, C, V] of every chunk. ``chunk`` is the number of tokens per row and forward.
    """

    def __init__(
        self,
        lm: LM,
        cache: View,
        tokens: Tensor,
        length: Tensor,
        longest: int,
        *,
        taps: Sequence[int] = (),
        last_states: int | None = None,
        on_logits: Callable[[Tensor], None] | None = None,
        chunk: int = CHUNK,
    ) -> None:
        self._lm, self._cache, self._tokens, self._length = lm, cache, tokens, length
        self._left, self._chunk, self._on_logits = longest, chunk, on_logits
        self._last_states = last_states
        self._hidden: dict[int, list[Tensor]] = {tap: [] for tap in taps}

    @property
    def done(self) -> bool:
        """Whether everything is read."""
        return self._left <= 0

    def read(self) -> int:
        """Read the next chunk of every row; the largest number of tokens that a row read."""
        size = min(self._chunk, self._left)
        output = feed(
            self._lm,
            self._cache,
            self._tokens,
            (self._length - self._cache.length).clamp(0, size),
            size,
            taps=tuple(self._hidden),
            logits_for=LogitsFor.NONE if self._on_logits is None else LogitsFor.ALL,
            last_states=self._last_states,
        )
        for tap, pieces in self._hidden.items():
            pieces.append(output.hidden[tap])
        if self._on_logits is not None:
            assert output.logits is not None
            self._on_logits(output.logits)
        self._left -= size
        return size

    @property
    def hidden(self) -> dict[int, Tensor]:
        """The taps over what was read [B, n, H]; empty where nothing was."""
        return {tap: torch.cat(pieces, dim=1) for tap, pieces in self._hidden.items() if pieces}


def prefill(
    lm: LM, cache: View, tokens: Tensor, length: Tensor, longest: int, taps: Sequence[int]
) -> dict[int, Tensor]:
    """Read whole prompts: see Prefill. Returns the taps."""
    reading = Prefill(lm, cache, tokens, length, longest, taps=taps)
    while not reading.done:
        reading.read()
    return reading.hidden
