"""From one product to queries, keys and values: splitting, norms, rotation. Knows nothing of caches or attention.

B rows, n nodes, H query heads, K key-value heads, E head size. Each takes heads [B, n, H + 2 K, E] and a table of
angles to queries [B, n, H, E], keys and values [B, n, K, E].
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torch import Tensor, nn

from paceline.models.native.config import DecoderConfig, NormSpan
from paceline.models.native.layers import rotate, rotate_float32, rotate_partial

RotaryTable: TypeAlias = tuple[Tensor, Tensor] | None
QKV: TypeAlias = tuple[Tensor, Tensor, Tensor]
RotateFn: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]


class PrepareQKV(Protocol):
    """Queries, keys and values of one layer."""

    def __call__(self, heads: Tensor, table: RotaryTable) -> QKV: ...


@dataclass(frozen=True, slots=True)
class SplitQKV:
    """Heads as they lie: positions were added to the embeddings, or this layer sees none."""

    sizes: tuple[int, int, int]

    def __call__(self, heads: Tensor, table: RotaryTable) -> QKV:
        query, key, value = heads.split(self.sizes, dim=2)
        return query, key, value


@dataclass(frozen=True, slots=True)
class RotateQK:
    """Queries and keys turned together."""

    sizes: tuple[int, int, int]
    turn: RotateFn

    def __call__(self, heads: Tensor, table: RotaryTable) -> QKV:
        assert table is not None
        rotated, value = heads.split((sum(self.sizes[:2]), self.sizes[2]), dim=2)
        query, key = self.turn(rotated, *table).split(self.sizes[:2], dim=2)
        return query, key, value


@dataclass(frozen=True, slots=True)
class RotateInterleavedQKV:
    """Query, key and value of each head side by side (GPT-NeoX), and turned."""

    turn: RotateFn

    def __call__(self, heads: Tensor, table: RotaryTable) -> QKV:
        assert table is not None
        query, key, value = heads.unflatten(2, (-1, 3)).unbind(3)
        return self.turn(query, *table), self.turn(key, *table), value


class NormRotateQK(nn.Module):
    """Norms of queries and keys before they are turned."""

    def __init__(self, config: DecoderConfig, sizes: tuple[int, int, int], turn: RotateFn, span: NormSpan) -> None:
        super().__init__()
        self.sizes, self.turn = sizes, turn
        heads = (1, 1) if span is NormSpan.HEAD else sizes[:2]
        self.query_size, self.key_size = (count * config.head_dim for count in heads)
        self.query_norm = config.norm(self.query_size, config.norm_eps)
        self.key_norm = config.norm(self.key_size, config.norm_eps)

    def forward(self, heads: Tensor, table: RotaryTable) -> QKV:
        assert table is not None
        query, key, value = heads.split(self.sizes, dim=2)
        outer = heads.shape[:2]
        query = self.query_norm(query.reshape(*outer, -1, self.query_size)).view(query.shape)
        key = self.key_norm(key.reshape(*outer, -1, self.key_size)).view(key.shape)
        return self.turn(query, *table), self.turn(key, *table), value


@dataclass(frozen=True, slots=True)
class ScaleQuery:
    """Queries times a factor, where the scores are not scaled by one over the root of E."""

    inner: PrepareQKV
    factor: float

    def __call__(self, heads: Tensor, table: RotaryTable) -> QKV:
        query, key, value = self.inner(heads, table)
        return query * self.factor, key, value


def make_qkv(config: DecoderConfig, layer: int) -> PrepareQKV:
    """What ``layer`` of ``config`` does with its heads. Raises ValueError for what no family combines."""
    attention, sizes = config.attention, (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    rotated = config.rotary is not None and layer not in attention.unrotated
    if (attention.interleaved or attention.norm_span is not None) and not rotated:
        raise ValueError("interleaved heads and norms of queries and keys need a rotary embedding in every layer")
    split = _make_split(config, sizes) if rotated else SplitQKV(sizes)
    if attention.scale is None or attention.scale == config.head_dim**-0.5:
        return split
    return ScaleQuery(split, attention.scale * config.head_dim**0.5)


def _make_split(config: DecoderConfig, sizes: tuple[int, int, int]) -> PrepareQKV:
    assert config.rotary is not None
    turn = rotate_float32 if config.rotary.wide else rotate
    if 2 * len(config.rotary.inverse_frequencies) < config.head_dim:
        turn = rotate_partial
    if config.attention.norm_span is not None:
        return NormRotateQK(config, sizes, turn, config.attention.norm_span)
    return RotateInterleavedQKV(turn) if config.attention.interleaved else RotateQK(sizes, turn)
