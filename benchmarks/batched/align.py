"""Rows padded on the left so that all end at one slot, and moved there again after every step (2510.22876).

Elsewhere slots are positions, and rows end independently. Here all caches of a decoder share an
offset per row, which mask and slots respect. Token buffers are not moved, which is in favour of this way.

L layers, R rows, S slots, H key-value heads, E head size; B rows of a view, n nodes or slots of a call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from paceline.core.cache import SlotCache, View, Zeros
from paceline.core.tree import Tree
from paceline.models.native.attention import CacheAttention, TreeAttention
from paceline.models.native.decoder import DecoderLM


@dataclass(frozen=True, slots=True)
class _Buffers:
    """A cache and a spare one of the same size; a move swaps them."""

    cache: SlotCache
    spare: list[Tensor]


@final
class Alignment:
    """Where the first token of each row is in its caches: at the slot ``offset`` [R]."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.offset = torch.zeros(rows, dtype=torch.int64, device=device)
        self._caches: list[_Buffers] = []

    def keep(self, cache: SlotCache) -> SlotCache:
        """``cache``, moved with the others from now on."""
        self._caches.append(_Buffers(cache, [torch.zeros_like(cache.keys), torch.zeros_like(cache.values)]))
        return cache

    def begin(self, length: Sequence[int]) -> None:
        """Pad empty rows for prompts of ``length`` tokens."""
        given = torch.tensor(length, device=self.offset.device)
        self.offset.copy_(given.max() - given)

    def align(self, length: Tensor) -> None:
        """Move all rows so that texts of ``length`` [R] tokens end at one slot; nothing where they do already."""
        end = length.max()
        offset = end - length
        if torch.equal(offset, self.offset):
            return
        shift = (offset - self.offset)[:, None]
        slot = torch.arange(int(end), device=shift.device)
        for buffers in self._caches:
            cache = buffers.cache
            # What comes from beside a row's slots lies in its padding, which nothing reads.
            source = (slot - shift).clamp(0, cache.capacity - 1)
            former = [cache.keys, cache.values]
            for store, into in zip(former, buffers.spare, strict=True):
                _gather(store, source, into)
            cache.keys, cache.values = buffers.spare
            buffers.spare[:] = former
        self.offset.copy_(offset)

    def attention(self, tree: Tree, cache: View, start: int, *, max_positions: int, group: int) -> CacheAttention:
        """A AttentionFactory (models/flex) over caches that it keeps."""
        offset = self.offset if cache.rows is None else self.offset[cache.rows]
        return _AlignedAttention(tree, cache, start, offset, max_positions=max_positions, group=group)


def _gather(store: Tensor, source: Tensor, into: Tensor) -> None:
    """Slots ``source`` [R, n] of each row in every layer of ``store`` [L, R + 1, S, H, E] to the first of ``into``."""
    size = store.shape[-1] * store.itemsize
    # Elements are copied one by one: the wider, the fewer.
    wide = next(dtype for dtype in (torch.complex128, torch.float64, store.dtype) if size % dtype.itemsize == 0)
    rows = torch.arange(len(source), device=source.device)[:, None]
    out = into.view(wide)[:, : len(source), : source.shape[1]]
    torch.ops.aten.index.Tensor_out(store.view(wide), [None, rows, source], out=out)


@final
class _AlignedAttention(TreeAttention):
    """Dense attention that leaves out the padding; ``offset`` [B] slots of it."""

    def __init__(self, tree: Tree, cache: View, start: int, offset: Tensor, *, max_positions: int, group: int) -> None:
        CacheAttention.__init__(self, tree, cache, start, max_positions=max_positions)
        self.slots = (self.slots + offset[:, None]).clamp(max=cache.capacity - 1)
        slot = torch.arange(cache.capacity, device=offset.device) - offset[:, None]  # [B, S] in the row's own count
        node = slot - cache.length[:, None]
        index = node.clamp(0, tree.num_nodes - 1)[:, None, :].expand(-1, tree.num_nodes - start, -1)
        own = tree.ancestors[:, start:].gather(2, index) & (node < tree.num_nodes)[:, None, :]
        seen = torch.where((node < 0)[:, None, :], (slot >= 0)[:, None, :], own)
        added = torch.zeros_like(seen, dtype=cache.dtype).masked_fill(~seen, -torch.inf)
        self.mask = added.repeat(1, group, 1)[:, None]


class AlignedLM(DecoderLM):
    """``lm`` on its own weights, over caches that ``alignment`` keeps."""

    def __init__(self, lm: DecoderLM, alignment: Alignment) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(lm.__dict__)  # the very parts
        self.alignment, self.attention = alignment, alignment.attention

    def new_cache(self, rows: int, capacity: int, *, zeros: Zeros | None = None) -> SlotCache:
        """As the decoder's own, and as much memory again."""
        return self.alignment.keep(super().new_cache(rows, capacity, zeros=zeros))
