"""From the fused QKV projection to queries, keys and values: splitting, norms, rotary embedding.

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
    """Splits only: positions were added to the embeddings, or this layer has none (NoPE)."""

    sizes: tuple[int, int, int]

    def __call__(self, heads: Tensor, table: RotaryTable) -> QKV:
        query, key, value = heads.split(self.sizes, dim=2)
        return query, key, value


@dataclass(frozen=True, slots=True)
class RotateQK:
    """Splits, and rotates queries and keys."""

    sizes: tuple[int, int, int]
    rotate: RotateFn

    def __call__(self, heads: Tensor, table: RotaryTable) -> QKV:
        assert table is not None
        rotated, value = heads.split((sum(self.sizes[:2]), self.sizes[2]), dim=2)
        query, key = self.rotate(rotated, *table).split(self.sizes[:2], dim=2)
        return query, key, value


@dataclass(frozen=True, slots=True)
class RotateInterleavedQKV:
    """As ``RotateQK``, with query, key and value grouped by head (GPT-NeoX)."""

    rotate: RotateFn

    def __call__(self, heads: Tensor, table: RotaryTable) -> QKV:
        assert table is not None
        query, key, value = heads.unflatten(2, (-1, 3)).unbind(3)
        return self.rotate(query, *table), self.rotate(key, *table), value


class NormRotateQK(nn.Module):
    """Splits, normalises and rotates queries and keys (QK norm)."""

    def __init__(self, config: DecoderConfig, sizes: tuple[int, int, int], rotate: RotateFn, span: NormSpan) -> None:
        super().__init__()
        self.sizes, self.rotate = sizes, rotate
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
        return self.rotate(query, *table), self.rotate(key, *table), value


@dataclass(frozen=True, slots=True)
class ScaleQuery:
    """Queries times a factor, where the scores are not scaled by one over the root of E."""

    inner: PrepareQKV
    factor: float

    def __call__(self, heads: Tensor, table: RotaryTable) -> QKV:
        query, key, value = self.inner(heads, table)
        return query * self.factor, key, value


def make_qkv(config: DecoderConfig, layer: int) -> PrepareQKV:
    """How ``layer`` of ``config`` prepares queries, keys and values. Raises ValueError for what no family combines."""
    attention, sizes = config.attention, (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    rotated = config.rotary is not None and layer not in attention.unrotated
    if (attention.interleaved or attention.norm_span is not None) and not rotated:
        raise ValueError("interleaved heads and norms of queries and keys need a rotary embedding in every layer")
    split = _make_rotated_qkv(config, sizes) if rotated else SplitQKV(sizes)
    if attention.scale is None or attention.scale == config.head_dim**-0.5:
        return split
    return ScaleQuery(split, attention.scale * config.head_dim**0.5)


def _make_rotated_qkv(config: DecoderConfig, sizes: tuple[int, int, int]) -> PrepareQKV:
    assert config.rotary is not None
    rotate_fn = rotate_float32 if config.rotary.wide else rotate
    if 2 * len(config.rotary.inverse_frequencies) < config.head_dim:
        rotate_fn = rotate_partial
    if config.attention.norm_span is not None:
        return NormRotateQK(config, sizes, rotate_fn, config.attention.norm_span)
    return RotateInterleavedQKV(rotate_fn) if config.attention.interleaved else RotateQK(sizes, rotate_fn)
