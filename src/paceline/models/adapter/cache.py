"""A transformers ``Cache`` over a SlotCache, for the adapter.

B rows, n nodes, S slots, H key-value heads and E head size of one layer; the storage fits the largest layer.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from paceline.core.cache import SlotCache, View
from paceline.models.native.attention import TreeAttention


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Heads and head sizes of one layer's keys and values."""

    num_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """A model's cache entries per token: one per layer, None for a layer without a cache of its own."""

    layers: tuple[LayerShape | None, ...]
    dtype: torch.dtype

    @property
    def cached_layers(self) -> tuple[LayerShape, ...]:
        """The layers with a cache."""
        return tuple(layer for layer in self.layers if layer is not None)

    @property
    def num_heads(self) -> int:
        return max(layer.num_heads for layer in self.cached_layers)

    @property
    def head_dim(self) -> int:
        return max(max(layer.key_dim, layer.value_dim) for layer in self.cached_layers)

    @property
    def slot_bytes(self) -> int:
        """Keys and values of one token over all layers in the storage, in bytes."""
        return 2 * len(self.cached_layers) * self.num_heads * self.head_dim * self.dtype.itemsize

    def new_cache(self, rows: int, capacity: int, device: torch.device) -> SlotCache:
        return SlotCache(
            num_layers=len(self.cached_layers),
            rows=rows,
            capacity=capacity,
            num_kv_heads=self.num_heads,
            head_dim=self.head_dim,
            dtype=self.dtype,
            device=device,
        )


class SlotLayer(CacheLayerMixin):
    """One layer of ``TreeCache``: writes the nodes' keys and values to their slots and returns those of all slots."""

    is_sliding = False

    def __init__(self, attend: TreeAttention, index: int, shape: LayerShape) -> None:
        super().__init__()
        self.attend, self.index, self.shape = attend, index, shape
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """The storage exists already."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """``key_states`` and ``value_states`` [B, H, n, E] to keys and values [B, H, S, E]; the caller masks."""
        view, attend, shape = self.attend.cache, self.attend, self.shape
        largest = view.storage.keys.shape[-2:]
        keys, values = (_pad(states.transpose(1, 2), largest) for states in (key_states, value_states))
        view.write(self.index, attend.rows, attend.slots, keys, values)
        keys, values = view.read(self.index)
        self.keys = keys[:, :, : shape.num_heads, : shape.key_dim].transpose(1, 2)
        self.values = values[:, :, : shape.num_heads, : shape.value_dim].transpose(1, 2)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.attend.cache.capacity, 0

    def get_seq_length(self) -> int:
        """Rows differ in length; this value makes the new nodes end at the last slot."""
        return max(0, self.attend.cache.capacity - self.attend.slots.shape[1])

    def get_max_length(self) -> int:
        return self.attend.cache.capacity


class EmptyLayer(SlotLayer):
    """A layer without a cache of its own: it has no keys and values, or shares another layer's."""

    def __init__(self, attend: TreeAttention) -> None:
        super().__init__(attend, -1, LayerShape(0, 0, 0))

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise RuntimeError("a layer caches keys and values that it did not cache when the model was probed")


class TreeCache(Cache):
    """The cache that a transformers model gets for one forward over a tree."""

    def __init__(self, shape: CacheShape, attend: TreeAttention) -> None:
        layers: list[Any] = []
        index = 0
        for layer in shape.layers:
            layers.append(EmptyLayer(attend) if layer is None else SlotLayer(attend, index, layer))
            index += layer is not None
        super().__init__(layers=layers)


def has_all_layers(view: View) -> bool:
    """Whether ``view`` has all layers of its storage, in order; only native models can run a part of them."""
    return view.layers == tuple(range(view.storage.num_layers))


def _pad(states: Tensor, largest: torch.Size) -> Tensor:
    """``states`` [B, n, H, E] with zeros up to ``largest``, the storage's heads and head size."""
    heads, size = largest[0] - states.shape[2], largest[1] - states.shape[3]
    return F.pad(states, (0, size, 0, heads)) if heads or size else states
