"""Tree attention over a slot cache, and causal attention for training.

B rows, n nodes of the call, s + n nodes of the tree so far, S slots, G query heads per key-value head, H key-value
heads, E head size, X states of an encoder.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.core.cache import SlotCache, View
from paceline.core.tree import Tree
from paceline.models.memory import lazy_zeros


class Attend(Protocol):
    """One forward's attention: ``positions`` [B, n] and, per layer, queries against keys and values."""

    positions: Tensor

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """``query`` [B, n, G * H, E], ``key`` and ``value`` [B, n, H, E] to [B, n, G * H, E]."""
        ...

    def attend_source(self, layer: int, query: Tensor) -> Tensor:
        """``query`` [B, n, G * H, E] against the keys and values of an encoder's states."""
        ...


class WithoutSource:
    """An attention of blocks that read no encoder's states."""

    def attend_source(self, layer: int, query: Tensor) -> Tensor:
        """Is not called."""
        raise AssertionError("these blocks have no cross-attention")


ScoreBias: TypeAlias = Callable[[Tensor], Tensor]  # [B, n, m] distances from keys to queries -> [B, G * H, n, m]


@dataclass(frozen=True, slots=True)
class Source:
    """Keys and values of an encoder's states: of a layer, [B, X, H, E], the first ``length`` [B] of them."""

    read: Callable[[int], tuple[Tensor, Tensor]]
    length: Tensor

    def attend(self, layer: int, query: Tensor) -> Tensor:
        """``query`` [B, n, G * H, E] against all states of its row: as large."""
        keys, values = self.read(layer)
        # A row without any, which nobody reads, sees one, because 0 times NaN is NaN.
        seen = torch.arange(keys.shape[1], device=keys.device) < self.length.clamp(min=1)[:, None]
        query, keys, values = (states.transpose(1, 2) for states in (query, keys, values))
        mask = seen[:, None, None]
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True).transpose(1, 2)


SOURCE_KEYS, SOURCE_VALUES, SOURCE_LENGTH = "source keys", "source values", "source length"  # of a cache's row state


def add_sources(cache: SlotCache, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Give ``cache`` room for the keys and values of its rows' sources, [R, L, X, K, E] as ``shape``. On the CPU it
    takes memory when it is written.
    """
    device = cache.length.device
    for name in (SOURCE_KEYS, SOURCE_VALUES):
        on_cpu = device.type == "cpu"
        cache.row_state[name] = lazy_zeros(shape, dtype) if on_cpu else torch.zeros(shape, dtype=dtype, device=device)
    cache.row_state[SOURCE_LENGTH] = torch.zeros(shape[0], dtype=torch.int64, device=device)


def cached_source(cache: View) -> Source | None:
    """What the rows of ``cache`` hold of their encoder's states; None in a cache of a decoder alone."""
    if SOURCE_KEYS not in cache.storage.row_state:
        return None

    def read(layer: int) -> tuple[Tensor, Tensor]:
        both = (cache.storage.row_state[name][:, cache.layers[layer]] for name in (SOURCE_KEYS, SOURCE_VALUES))
        keys, values = (states if cache.rows is None else states[cache.rows] for states in both)
        return keys, values

    return Source(read, cache.row_state(SOURCE_LENGTH))


class CacheAttention(ABC):
    """Tree attention over a cache: a node attends to the committed slots, its ancestors and itself."""

    def __init__(self, tree: Tree, cache: View, start: int, *, max_positions: int) -> None:
        length = cache.length[:, None]
        nodes = torch.arange(start, tree.num_nodes, device=length.device)
        self.cache = cache
        self.positions = (length + tree.depth[:, start:]).clamp(max=max_positions - 1)
        self.slots = (length + nodes).clamp(max=cache.capacity - 1)
        self.rows = cache.target_rows(tree.valid[:, start:])
        self.source = cached_source(cache)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Write ``key`` and ``value`` to their slots, then attend (see ``Attend``)."""
        self.cache.write(layer, self.rows, self.slots, key, value)
        return self.attend_slots(query, *self.cache.read(layer))

    def attend_source(self, layer: int, query: Tensor) -> Tensor:
        """See ``Attend``."""
        assert self.source is not None
        return self.source.attend(layer, query)

    @abstractmethod
    def attend_slots(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """``query`` [B, n, G * H, E] against the slots' ``keys`` and ``values`` [B, S, H, E]: [B, n, G * H, E]."""


class TreeAttention(CacheAttention):
    """Dense tree attention: one mask over all slots of the capacity.

    ``bias`` (None: nothing) is added to the scores.
    """

    def __init__(
        self, tree: Tree, cache: View, start: int, *, max_positions: int, group: int, bias: ScoreBias | None = None
    ) -> None:
        super().__init__(tree, cache, start, max_positions=max_positions)
        mask = visible_slots(tree, cache, start)
        added = torch.zeros_like(mask, dtype=cache.dtype).masked_fill(~mask, -torch.inf)
        # The group folds into the query axis, so shared keys and values are never expanded.
        self.mask = added.repeat(1, group, 1)[:, None]  # [B, 1 or H, G * n, S], made once for all layers
        if bias is not None:
            distance = self.positions[:, :, None] - slot_positions(tree, cache)[:, None, :]
            self.mask = self.mask + bias(distance).unflatten(1, (-1, group)).flatten(2, 3)

    def attend_slots(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        rows, nodes, heads, size = query.shape
        group = heads // keys.shape[2]
        folded = query.unflatten(2, (-1, group)).permute(0, 2, 3, 1, 4).reshape(rows, -1, group * nodes, size)
        out = F.scaled_dot_product_attention(folded, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=self.mask)
        return out.view(rows, -1, group, nodes, size).permute(0, 3, 1, 2, 4).reshape(rows, nodes, heads, size)


def slot_positions(tree: Tree, cache: View) -> Tensor:
    """The positions [B, S] of what the slots hold, committed or nodes of ``tree``; of others any."""
    slot = torch.arange(cache.capacity, device=cache.length.device)
    length = cache.length[:, None]
    depth = tree.depth.gather(1, (slot - length).clamp(0, tree.num_nodes - 1))
    return torch.where(slot < length, slot, length + depth)


def visible_slots(tree: Tree, cache: View, start: int) -> Tensor:
    """The slots that nodes ``start`` on of ``tree`` attend to: [B, n, S] bool."""
    slot = torch.arange(cache.capacity, device=cache.length.device)
    node = slot - cache.length[:, None]  # [B, S] the node that a slot holds, negative where committed
    index = node.clamp(0, tree.num_nodes - 1)[:, None, :].expand(-1, tree.num_nodes - start, -1)
    own = tree.ancestors[:, start:].gather(2, index) & (node < tree.num_nodes)[:, None, :]
    return (node < 0)[:, None, :] | own


class CausalAttention:
    """Whole sequences at once without a cache, for training: position t attends to 0..t of its segment.

    ``segment`` [B, T] numbers the sequences packed in a row; each starts at position 0. None: one sequence per row.
    ``bias`` (None: nothing) is added to the scores; ``source`` (None: none) are an encoder's states.
    """

    def __init__(
        self,
        rows: int,
        length: int,
        device: torch.device,
        segment: Tensor | None = None,
        *,
        bias: ScoreBias | None = None,
        source: Source | None = None,
    ) -> None:
        index = torch.arange(length, device=device)
        self.positions = index.expand(rows, length)
        self.mask: Tensor | None = None  # [B, 1, T, T]
        self.source = source
        if segment is not None:
            begins = torch.ones_like(segment, dtype=torch.bool)
            begins[:, 1:] = segment[:, 1:] != segment[:, :-1]
            self.positions = index - torch.where(begins, index, 0).cummax(-1).values
            own = segment[:, None, :] == segment[:, :, None]
            self.mask = (own & (index <= index[:, None]))[:, None]
        if bias is not None:
            seen = (index <= index[:, None])[None, None] if self.mask is None else self.mask
            added = bias(self.positions[:, :, None] - self.positions[:, None, :])
            self.mask = added.masked_fill(~seen, -torch.inf)

    def attend_source(self, layer: int, query: Tensor) -> Tensor:
        """See ``Attend``."""
        assert self.source is not None
        return self.source.attend(layer, query)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            attn_mask=self.mask,
            is_causal=self.mask is None,
            enable_gqa=True,
        )
        return out.transpose(1, 2)
